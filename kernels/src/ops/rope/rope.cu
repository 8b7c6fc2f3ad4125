// Rotary position embedding. One block: 32 pairs of a row, its heads divided among WARPS.
#include "math.cuh"

constexpr uint32_t WARPS = 16;

struct Rope {
    float *x;
    const uint32_t *positions;
    const float *inv_freq;
    uint32_t n_pair;
    uint32_t n_head;
    uint32_t head_dim;
    // Distances from one pair to the next, and from the first to the second element of a pair.
    uint32_t pair_stride;
    uint32_t partner;
    float magnitude;
    uint32_t n_row;
    /// First rotated element of a head.
    uint32_t first_element;
};

KERNEL(rope, WARPS * LANES, Joined<Rope>) {
    const Rope &rope = args.each[blockIdx.z];
    const uint32_t pair = blockIdx.x * LANES + lane();
    const uint32_t row = blockIdx.y;
    if (pair >= rope.n_pair || row >= rope.n_row) return;
    float sine, cosine;
    sine_cosine((float)rope.positions[row] * rope.inv_freq[pair], sine, cosine);
    sine = rope.magnitude * sine;
    cosine = rope.magnitude * cosine;
    for (uint32_t head = warp(); head < rope.n_head; head += WARPS) {
        float *first = rope.x + ((uint64_t)row * rope.n_head + head) * rope.head_dim +
                       rope.first_element + pair * rope.pair_stride;
        float *second = first + rope.partner;
        const float a = *first, b = *second;
        *first = a * cosine - b * sine;
        *second = a * sine + b * cosine;
    }
}
