// Hyper-connections, in the CPU's order (see `kernels/src/ops/hyper_connection/cpu.rs`).
#include "math.cuh"

/// Maximum number of streams.
constexpr uint32_t MAX_STREAMS = 16;

struct Weights {
    const float *mixes;
    const float *scale;
    const float *base;
    float *out;
    uint32_t n;
    uint32_t n_stream;
    uint32_t n_weight;
    uint32_t n_iteration;
    float eps;
    uint32_t unused;
};

/// One thread per row: the matrices are small, and each step depends on the one before.
KERNEL(stream_weights, 32, Weights) {
    const uint32_t row = (uint32_t)place(), n = args.n_stream;
    if (row >= args.n) return;
    const float *mixes = args.mixes + (uint64_t)row * args.n_weight;
    float *out = args.out + (uint64_t)row * args.n_weight;
    for (uint32_t i = 0; i < args.n_weight; i++) {
        const uint32_t kind = min_of(i / n, 2);
        const float value = mixes[i] * args.scale[kind] + args.base[i];
        out[i] = kind == 0 ? sigmoid(value) + args.eps : kind == 1 ? 2.0f * sigmoid(value) : value;
    }
    if (args.n_weight == n) return;
    float *matrix = out + 2 * n;
    for (uint32_t i = 0; i < n; i++) {
        float *from = matrix + i * n;
        float most = -__uint_as_float(0x7f800000u), sum = 0.0f;
        for (uint32_t j = 0; j < n; j++) most = fmaxf(most, from[j]);
        for (uint32_t j = 0; j < n; j++) from[j] = exponential(from[j] - most);
        for (uint32_t j = 0; j < n; j++) sum += from[j];
        for (uint32_t j = 0; j < n; j++) from[j] = from[j] / sum + args.eps;
    }
    const uint32_t n_iteration = max_of(args.n_iteration, 1);
    for (uint32_t iteration = 0; iteration < n_iteration; iteration++) {
        for (uint32_t i = 0; iteration > 0 && i < n; i++) {
            float sum = 0.0f;
            for (uint32_t j = 0; j < n; j++) sum += matrix[i * n + j];
            sum += args.eps;
            for (uint32_t j = 0; j < n; j++) matrix[i * n + j] /= sum;
        }
        for (uint32_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (uint32_t i = 0; i < n; i++) sum += matrix[i * n + j];
            sum += args.eps;
            for (uint32_t i = 0; i < n; i++) matrix[i * n + j] /= sum;
        }
    }
}

struct Streams {
    float *x;
    const float *weights;
    float *part;
    uint64_t len;
    uint32_t dim;
    uint32_t n_stream;
    uint32_t n_weight;
    uint32_t unused;
};

/// Sums the streams: one thread per element of `part`.
KERNEL(gather_streams, 256, Streams) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const uint64_t row = i / args.dim, column = i % args.dim;
    float sum = 0.0f;
    for (uint32_t stream = 0; stream < args.n_stream; stream++) {
        sum += args.weights[row * args.n_weight + stream] * args.x[(row * args.n_stream + stream) * args.dim + column];
    }
    args.part[i] = sum;
}

/// Replaces the streams: one thread per element of `part`, for all streams.
KERNEL(scatter_streams, 256, Streams) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const uint64_t row = i / args.dim, column = i % args.dim;
    const float *factors = args.weights + row * args.n_weight + args.n_stream;
    const float *matrix = factors + args.n_stream;
    float *x = args.x + row * args.n_stream * args.dim + column;
    float before[MAX_STREAMS];
#pragma unroll
    for (uint32_t from = 0; from < MAX_STREAMS; from++) {
        before[from] = from < args.n_stream ? x[(uint64_t)from * args.dim] : 0.0f;
    }
    for (uint32_t to = 0; to < args.n_stream; to++) {
        float sum = args.part[i] * factors[to];
#pragma unroll
        for (uint32_t from = 0; from < MAX_STREAMS; from++) {
            if (from < args.n_stream) sum += before[from] * matrix[from * args.n_stream + to];
        }
        x[(uint64_t)to * args.dim] = sum;
    }
}
