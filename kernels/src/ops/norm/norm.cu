// Root mean square and Euclidean norms. One block per row.
#include "activation.cuh"

constexpr uint32_t THREADS = 256;
/// Elements in shared memory while one warp sums their squares in order.
constexpr uint32_t PART = 8192;

/// Returns the sum of the squares of a row in all threads. If `added` is not null, it is added to the row first.
DEVICE float sum_of_squares(float *x, const float *added, uint32_t dim) {
    __shared__ float part[PART];
    __shared__ float total;
    float sum = 0.0f;
    for (uint32_t base = 0; base < dim; base += PART) {
        const uint32_t len = min_of(PART, dim - base);
        const uint32_t padded = (len + LANES - 1) / LANES * LANES;
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < padded; i += THREADS) {
            float value = i < len ? x[base + i] : 0.0f;
            if (added != nullptr && i < len) {
                value += added[base + i];
                x[base + i] = value;
            }
            part[i] = value;
        }
        __syncthreads();
        if (warp() == 0) {
#pragma unroll 16
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
    float *x;
    /// Added to `x` first, or null. It may equal `out`.
    const float *added;
    const float *weight;
    float *out;
    QuantizedInput quantized;
    uint32_t n;
    uint32_t dim;
    float eps;
};

KERNEL(rms_norm, THREADS, Joined<RmsNorm>) {
    const RmsNorm &norm = args.each[blockIdx.z];
    if (blockIdx.x >= norm.n) return;
    const uint64_t row = (uint64_t)blockIdx.x * norm.dim;
    float *x = norm.x + row;
    const float *added = norm.added == nullptr ? nullptr : norm.added + row;
    const float mean = sum_of_squares(x, added, norm.dim) / (float)norm.dim;
    const float scale = 1.0f / sqrtf(mean + norm.eps);
    for (uint32_t i = threadIdx.x; i < norm.dim; i += THREADS) {
        const float value = x[i] * scale * norm.weight[i];
        norm.out[row + i] = value;
        store_quant(norm.quantized, row + i, value);
    }
}

struct L2Norm {
    float *x;
    uint32_t dim;
    float eps;
};

KERNEL(l2_norm, THREADS, L2Norm) {
    float *x = args.x + (uint64_t)blockIdx.x * args.dim;
    const float scale = 1.0f / sqrtf(sum_of_squares(x, nullptr, args.dim) + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += THREADS) x[i] *= scale;
}
