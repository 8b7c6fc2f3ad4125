// Products of activations with a float weight of type WEIGHT, or with experts. Compiled for each type.
//
// An output element is one sum per lane, then the sum of all lanes, as on the CPU. It does not depend on the
// other elements of the block.
#include "matmul.cuh"
#include "unpack.cuh"

constexpr uint32_t ROWS = 8;
constexpr uint32_t THREADS = 128;

/// Each warp multiplies some rows, each lane every 32nd element.
template <class T, uint32_t C>
DEVICE void multiply(const Matmul &args) {
    constexpr uint32_t N = ROWS / (THREADS / LANES);
    const Share<ROWS, C> share(args);
    if (share.count == 0) return;
    const uint8_t *rows[N];
#pragma unroll
    for (uint32_t r = 0; r < N; r++) rows[r] = share.row(warp() * N + r);
    const float *inputs[C];
#pragma unroll
    for (uint32_t c = 0; c < C; c++) inputs[c] = args.x + share.input(c) * args.n_cols;
    float sums[N][C] = {};
    for (uint32_t at = 0; at < args.n_cols; at += LANES) {
        const uint32_t i = at + lane();
        const bool inside = i < args.n_cols;
        float x[C];
#pragma unroll
        for (uint32_t c = 0; c < C; c++) x[c] = inside ? inputs[c][i] : 0.0f;
#pragma unroll
        for (uint32_t r = 0; r < N; r++) {
            const float w = inside ? T::at(rows[r], i) : 0.0f;
#pragma unroll
            for (uint32_t c = 0; c < C; c++) sums[r][c] = fmaf(w, x[c], sums[r][c]);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < N; r++) {
#pragma unroll
        for (uint32_t c = 0; c < C; c++) {
            const float sum = sum_lanes(sums[r][c]);
            if (lane() == 0) share.put(warp() * N + r, c, sum);
        }
    }
}

KERNEL(multiply_1, THREADS, Joined<Matmul>) { multiply<WEIGHT, 1>(args.each[blockIdx.z]); }
KERNEL(multiply_2, THREADS, Joined<Matmul>) { multiply<WEIGHT, 2>(args.each[blockIdx.z]); }
KERNEL(multiply_4, THREADS, Joined<Matmul>) { multiply<WEIGHT, 4>(args.each[blockIdx.z]); }
KERNEL(multiply_8, THREADS, Joined<Matmul>) { multiply<WEIGHT, 8>(args.each[blockIdx.z]); }
