// Rotary position embedding. One block: 32 pairs of a row, its heads shared among four warps.
#include "math.cuh"

constexpr uint32_t WARPS = 4;

struct Rope {
    float *x;
    const uint32_t *positions;
    const float *inv_freq;
    uint32_t n_pair;
    uint32_t n_head;
    uint32_t head_dim;
    // From one pair to the next, and from the first to the second element of a pair.
    uint32_t pair_stride;
    uint32_t partner;
    float magnitude;
};

KERNEL(rope, WARPS * LANES, Rope) {
    const uint32_t pair = blockIdx.x * LANES + lane();
    const uint32_t row = blockIdx.y;
    if (pair >= args.n_pair) return;
    float sine, cosine;
    sine_cosine((float)args.positions[row] * args.inv_freq[pair], sine, cosine);
    sine = args.magnitude * sine;
    cosine = args.magnitude * cosine;
    for (uint32_t head = warp(); head < args.n_head; head += WARPS) {
        float *first = args.x + ((uint64_t)row * args.n_head + head) * args.head_dim +
                       pair * args.pair_stride;
        float *second = first + args.partner;
        const float a = *first, b = *second;
        *first = a * cosine - b * sine;
        *second = a * sine + b * cosine;
    }
}
