// The gated delta rule. Each thread computes one column of the state of a value head, all steps in order.
#include "math.cuh"

struct Step {
    uint32_t row;
    uint32_t read;
    uint32_t write;
};

struct GatedDelta {
    const float *q;
    const float *k;
    const float *v;
    const float *alpha;
    const float *beta;
    const float *dt_bias;
    const float *a;
    const Step *steps;
    /// Slots of (n_head_v, head_dim_k, head_dim_v).
    float *state;
    float *out;
    uint32_t n_step;
    uint32_t n_head_k;
    uint32_t n_head_v;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    /// The key head of value head `h` is `h / divisor % n_head_k`.
    uint32_t divisor;
    /// 1 / sqrt(head_dim_k)
    float scale;
    uint32_t unused;
};

constexpr uint32_t THREADS = 64;

KERNEL(gated_delta_rule, THREADS, GatedDelta) {
    const uint32_t column = (uint32_t)place(), head = blockIdx.y;
    if (column >= args.head_dim_v) return;
    const uint64_t slot = (uint64_t)args.n_head_v * args.head_dim_k * args.head_dim_v;
    const uint64_t at_head = (uint64_t)head * args.head_dim_k * args.head_dim_v + column;
    const uint32_t key_head = head / args.divisor % args.n_head_k;
    for (uint32_t s = 0; s < args.n_step; s++) {
        const Step step = args.steps[s];
        const uint64_t at = (uint64_t)step.row * args.n_head_v + head;
        const uint64_t at_k = ((uint64_t)step.row * args.n_head_k + key_head) * args.head_dim_k;
        const float *q = args.q + at_k, *k = args.k + at_k;
        const float decay = exponential(softplus(args.alpha[at] + args.dt_bias[head]) * args.a[head]);
        const float strength = sigmoid(args.beta[at]);
        const bool begins = step.read == NONE;
        const float *from = args.state + (begins ? 0 : step.read) * slot + at_head;
        float *to = args.state + step.write * slot + at_head;
        float read = 0.0f;
#pragma unroll 8
        for (uint32_t i = 0; i < args.head_dim_k; i++) {
            const float old = begins ? 0.0f : from[(uint64_t)i * args.head_dim_v];
            read = fmaf(k[i], decay * old, read);
        }
        const float delta = strength * (args.v[at * args.head_dim_v + column] - read);
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t i = 0; i < args.head_dim_k; i++) {
            const float old = begins ? 0.0f : from[(uint64_t)i * args.head_dim_v];
            const float state = fmaf(k[i], delta, decay * old);
            to[(uint64_t)i * args.head_dim_v] = state;
            sum = fmaf(q[i], state, sum);
        }
        args.out[at * args.head_dim_v + column] = args.scale * sum;
    }
}
