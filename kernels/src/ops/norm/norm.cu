// Root mean square, layer and Euclidean norms. One block per row.
#include "activation.cuh"

constexpr uint32_t THREADS = 256;
/// Elements in shared memory while one warp sums them or their squares in order.
constexpr uint32_t PART = 8192;

/// Returns the sum of a row, or of its squares, in all threads. If `added` is not null, it is added to the row first.
DEVICE float sum_of(float *x, const float *added, uint32_t dim, bool squared) {
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
            for (uint32_t i = lane(); i < padded; i += LANES) sum = fmaf(part[i], squared ? part[i] : 1.0f, sum);
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
    /// Rows of the weight, which take turns.
    uint32_t n_weight;
};

KERNEL(rms_norm, THREADS, Joined<RmsNorm>) {
    const RmsNorm &norm = args.each[blockIdx.z];
    if (blockIdx.x >= norm.n) return;
    const uint64_t row = (uint64_t)blockIdx.x * norm.dim;
    float *x = norm.x + row;
    const float *added = norm.added == nullptr ? nullptr : norm.added + row;
    const float mean = sum_of(x, added, norm.dim, true) / (float)norm.dim;
    const float scale = 1.0f / sqrtf(mean + norm.eps);
    const float *weight = norm.weight + (uint64_t)(blockIdx.x % norm.n_weight) * norm.dim;
    for (uint32_t i = threadIdx.x; i < norm.dim; i += THREADS) {
        const float value = x[i] * scale * weight[i];
        norm.out[row + i] = value;
        store_quant(norm.quantized, row + i, value);
    }
}

struct LayerNorm {
    float *x;
    const float *weight;
    float *out;
    uint32_t dim;
    float eps;
};

KERNEL(layer_norm, THREADS, LayerNorm) {
    const uint64_t row = (uint64_t)blockIdx.x * args.dim;
    float *x = args.x + row, *out = args.out + row;
    const float mean = sum_of(x, nullptr, args.dim, false) / (float)args.dim;
    // Each thread reads only its own elements of `out`.
    for (uint32_t i = threadIdx.x; i < args.dim; i += THREADS) out[i] = x[i] - mean;
    const float variance = sum_of(out, nullptr, args.dim, true) / (float)args.dim;
    const float scale = 1.0f / sqrtf(variance + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += THREADS) out[i] = out[i] * scale * args.weight[i];
}

struct L2Norm {
    float *x;
    uint32_t dim;
    float eps;
};

KERNEL(l2_norm, THREADS, L2Norm) {
    float *x = args.x + (uint64_t)blockIdx.x * args.dim;
    const float scale = 1.0f / sqrtf(sum_of(x, nullptr, args.dim, true) + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += THREADS) x[i] *= scale;
}
