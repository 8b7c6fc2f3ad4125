// Root mean square, layer and Euclidean norms. One block per row, which is processed in parts of EACH elements per
// thread.
#include "activation.cuh"

constexpr uint32_t MAX_THREADS = 1024;
/// Elements of a part that a thread has in registers.
constexpr uint32_t EACH = 8;

/// The index of element `k` of the thread in the part that starts at `base`.
DEVICE uint32_t index_of(uint32_t base, uint32_t k) { return base + k * blockDim.x + threadIdx.x; }

/// Loads the thread's elements of a part; all loads are issued before the first is used. Elements past the end are
/// zeros.
DEVICE void load_part(const float *x, uint32_t base, uint32_t dim, float (&part)[EACH]) {
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = index_of(base, k);
        part[k] = i < dim ? x[i] : 0.0f;
    }
}

/// Returns the sum of a row, or of its squares, in all threads. If `added` is not null, it is added to the row first.
/// `part` becomes the last part of the row.
DEVICE float sum_of(float *x, const float *added, uint32_t dim, bool squared, float (&part)[EACH]) {
    // One warp sums in order.
    __shared__ float elements[EACH * MAX_THREADS];
    __shared__ float total;
    float sum = 0.0f;
    for (uint32_t base = 0; base < dim; base += EACH * blockDim.x) {
        load_part(x, base, dim, part);
        if (added != nullptr) {
            float summand[EACH];
            load_part(added, base, dim, summand);
#pragma unroll
            for (uint32_t k = 0; k < EACH; k++) {
                part[k] += summand[k];
                if (index_of(base, k) < dim) x[index_of(base, k)] = part[k];
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) elements[index_of(0, k)] = part[k];
        __syncthreads();
        const uint32_t len = min_of(EACH * blockDim.x, dim - base);
        if (warp() == 0) {
#pragma unroll 16
            for (uint32_t i = lane(); i < (len + LANES - 1) / LANES * LANES; i += LANES) {
                sum = fmaf(elements[i], squared ? elements[i] : 1.0f, sum);
            }
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

KERNEL(rms_norm, MAX_THREADS, Joined<RmsNorm>) {
    const RmsNorm &norm = args.each[blockIdx.z];
    if (blockIdx.x >= norm.n) return;
    const uint64_t row = (uint64_t)blockIdx.x * norm.dim;
    float *x = norm.x + row;
    const float *added = norm.added == nullptr ? nullptr : norm.added + row;
    const float *weights = norm.weight + (uint64_t)(blockIdx.x % norm.n_weight) * norm.dim;
    float part[EACH], weight[EACH];
    load_part(weights, 0, norm.dim, weight);
    const float mean = sum_of(x, added, norm.dim, true, part) / (float)norm.dim;
    const float scale = 1.0f / sqrtf(mean + norm.eps);
    for (uint32_t base = 0; base < norm.dim; base += EACH * blockDim.x) {
        // A single part is still in registers.
        if (norm.dim > EACH * blockDim.x) {
            load_part(x, base, norm.dim, part);
            load_part(weights, base, norm.dim, weight);
        }
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) {
            const uint32_t i = index_of(base, k);
            if (i >= norm.dim) break;
            const float value = part[k] * scale * weight[k];
            norm.out[row + i] = value;
            store_quant(norm.quantized, row + i, value);
        }
    }
}

struct LayerNorm {
    float *x;
    const float *weight;
    float *out;
    uint32_t dim;
    float eps;
};

KERNEL(layer_norm, MAX_THREADS, LayerNorm) {
    const uint64_t row = (uint64_t)blockIdx.x * args.dim;
    float *x = args.x + row, *out = args.out + row;
    float part[EACH];
    const float mean = sum_of(x, nullptr, args.dim, false, part) / (float)args.dim;
    // Each thread reads only its own elements of `out`.
    for (uint32_t i = threadIdx.x; i < args.dim; i += blockDim.x) out[i] = x[i] - mean;
    const float variance = sum_of(out, nullptr, args.dim, true, part) / (float)args.dim;
    const float scale = 1.0f / sqrtf(variance + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += blockDim.x) out[i] = out[i] * scale * args.weight[i];
}

struct L2Norm {
    float *x;
    uint32_t dim;
    float eps;
};

KERNEL(l2_norm, MAX_THREADS, L2Norm) {
    float *x = args.x + (uint64_t)blockIdx.x * args.dim;
    float part[EACH];
    const float scale = 1.0f / sqrtf(sum_of(x, nullptr, args.dim, true, part) + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += blockDim.x) x[i] *= scale;
}
