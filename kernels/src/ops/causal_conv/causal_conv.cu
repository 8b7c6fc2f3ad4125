// Depthwise causal convolution. One thread per channel, all steps in order.
#include "math.cuh"

/// A row of the batch, the slot with the state before it or NONE, and the slot for the state after it.
struct Step {
    uint32_t row;
    uint32_t read;
    uint32_t write;
};

struct CausalConv {
    const float *x;
    /// (n_channel, kernel), oldest tap first.
    const float *taps;
    /// (n_channel), or null.
    const float *bias;
    const Step *steps;
    /// Slots of (kernel - 1, n_channel).
    float *state;
    float *out;
    uint32_t n_step;
    uint32_t n_channel;
    uint32_t kernel;
};

KERNEL(causal_conv, 128, CausalConv) {
    const uint32_t channel = (uint32_t)place();
    if (channel >= args.n_channel) return;
    const uint32_t n_past = args.kernel - 1;
    const uint64_t slot = (uint64_t)n_past * args.n_channel;
    const float *taps = args.taps + (uint64_t)channel * args.kernel;
    for (uint32_t i = 0; i < args.n_step; i++) {
        const Step step = args.steps[i];
        const uint64_t at = (uint64_t)step.row * args.n_channel + channel;
        const float *read = args.state + step.read * slot + channel;
        float *write = args.state + step.write * slot + channel;
        const float x = args.x[at];
        float sum = 0.0f;
        for (uint32_t j = 0; j < n_past; j++) {
            const float past = step.read == NONE ? 0.0f : read[(uint64_t)j * args.n_channel];
            sum = fmaf(past, taps[j], sum);
            // Shifts the inputs; this one has been read before.
            if (j > 0) write[(uint64_t)(j - 1) * args.n_channel] = past;
        }
        if (n_past > 0) write[(uint64_t)(n_past - 1) * args.n_channel] = x;
        sum = fmaf(x, taps[n_past], sum);
        if (args.bias != nullptr) sum += args.bias[channel];
        args.out[at] = silu(sum);
    }
}
