// Root mean square and Euclidean norms. One block a row.
#include "common.cuh"

constexpr uint32_t THREADS = 256;
/// Elements that lie in shared memory while one warp sums their squares in order.
constexpr uint32_t PART = 2048;

/// The sum of the squares of a row, in all threads.
DEVICE float sum_of_squares(const float *x, uint32_t dim) {
    __shared__ float part[PART];
    __shared__ float total;
    float sum = 0.0f;
    for (uint32_t base = 0; base < dim; base += PART) {
        const uint32_t len = min_of(PART, dim - base);
        const uint32_t padded = (len + LANES - 1) / LANES * LANES;
        for (uint32_t i = threadIdx.x; i < padded; i += THREADS) {
            part[i] = i < len ? x[base + i] : 0.0f;
        }
        __syncthreads();
        if (warp() == 0) {
#pragma unroll 8
            for (uint32_t i = lane(); i < padded; i += LANES) sum = fmaf(part[i], part[i], sum);
        }
        __syncthreads();
    }
    if (warp() == 0) {
        sum = sum_lanes(sum);
        if (lane() == 0) total = sum;
    }
    __syncthreads();
    return total;
}

struct RmsNorm {
    const float *x;
    const float *weight;
    float *out;
    uint32_t dim;
    float eps;
};

KERNEL(rms_norm, THREADS, RmsNorm) {
    const float *x = args.x + (uint64_t)blockIdx.x * args.dim;
    float *out = args.out + (uint64_t)blockIdx.x * args.dim;
    const float mean = sum_of_squares(x, args.dim) / (float)args.dim;
    const float scale = 1.0f / sqrtf(mean + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += THREADS) out[i] = x[i] * scale * args.weight[i];
}

struct L2Norm {
    float *x;
    uint32_t dim;
    float eps;
};

KERNEL(l2_norm, THREADS, L2Norm) {
    float *x = args.x + (uint64_t)blockIdx.x * args.dim;
    const float scale = 1.0f / sqrtf(sum_of_squares(x, args.dim) + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += THREADS) x[i] *= scale;
}
