// Softmax attention over caches of types KEYS and VALUES, in the CPU's order (see
// `kernels/src/ops/attention/cpu.rs`). Compiled for each pair of types.
//
// Keys are processed in blocks of 32 and blocks in spans, both counted from the first row of a sequence. A
// thread block computes the state of one head for one span; the states are then joined in order.
#include "activation.cuh"
#include "cache.cuh"
#include "math.cuh"

/// Keys per span. Each warp processes blocks of a span.
constexpr uint32_t SPAN = 512;
constexpr uint32_t BLOCKS = SPAN / LANES;
constexpr uint32_t THREADS = SPAN;
/// Maximum number of elements of a head.
constexpr uint32_t MAX_HEAD_DIM = 1024;
/// Columns of values that are summed at the same time; longer heads are processed in several rounds.
constexpr uint32_t NARROW = 256;
constexpr uint32_t JOIN_THREADS = 128;

/// Cache rows of a query: `start` is the first row of its sequence, `first` the first visible row.
struct Past {
    uint32_t start;
    uint32_t first;
    uint32_t end;
};

struct Attention {
    const float *q;
    const uint8_t *k;
    const uint8_t *v;
    /// Attention sinks: the score of one more key per head, which has no value; or null.
    const float *sinks;
    const Past *pasts;
    /// (rows, n_head, n_span, 2 + head_dim): the largest score, the sum of weights, and the weighted sum of values.
    float *states;
    float *out;
    QuantizedInput quantized;
    /// Rows of the caches.
    uint32_t k_rows;
    uint32_t v_rows;
    uint32_t n_head;
    uint32_t n_head_kv;
    uint32_t head_dim;
    /// Number of spans that states have room for, from the first span that the row sees.
    uint32_t n_span;
    float scale;
    uint32_t unused;

    __device__ __forceinline__ float *state(uint32_t row, uint32_t head, uint32_t span) const {
        return states + (((uint64_t)row * n_head + head) * n_span + span) * (2 + head_dim);
    }
};

DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }

/// Prefetches one head of a row.
template <class Cells>
DEVICE void prefetch_head(const uint8_t *chunks, uint32_t head_dim) {
    for (uint32_t at = 0; at < head_offset<Cells>(0, 1, 1, head_dim); at += LINE) prefetch(chunks + at);
}

/// Computes the score of one key in one thread: chunks of 32 elements, each a chain of its own.
DEVICE float score(const float *q, const uint8_t *key, uint32_t head_dim) {
    prefetch_head<KEYS>(key, head_dim);
    float sum = 0.0f;
    for (uint32_t at = 0; at < head_dim; at += LANES, key += KEYS::CHUNK) {
        float product = 0.0f;
#pragma unroll
        for (uint32_t part = 0; part < LANES / 8; part++) {
            float x[8];
            KEYS::load(key, part, x);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) product = fmaf(q[at + 8 * part + i], x[i], product);
        }
        sum += product;
    }
    return sum;
}

/// Sums the weighted values of keys `begin..end` of a block, for one column, in one chain.
DEVICE float weigh(const float (&weights)[LANES], const uint8_t *values, uint64_t stride, uint32_t column,
                   uint32_t begin, uint32_t end) {
    float product = 0.0f;
    if (begin == 0 && end == LANES) {
        // All loads are issued before the first value is used.
#pragma unroll
        for (uint32_t key = 0; key < LANES; key++) {
            product = fmaf(weights[key], VALUES::at(values + key * stride, column), product);
        }
    } else {
#pragma unroll 8
        for (uint32_t key = begin; key < end; key++) {
            product = fmaf(weights[key], VALUES::at(values + key * stride, column), product);
        }
    }
    return product;
}

/// Computes the state of one span for one head of one row.
DEVICE void attend(const Attention &args) {
    __shared__ float q[MAX_HEAD_DIM];
    __shared__ float weights[BLOCKS][LANES];
    __shared__ float largest[BLOCKS], corrections[BLOCKS], sums[BLOCKS];
    __shared__ float products[BLOCKS][NARROW];
    const uint32_t head = blockIdx.x, row = blockIdx.y;
    const uint32_t head_kv = head / (args.n_head / args.n_head_kv);
    const Past past = args.pasts[row];
    const uint32_t span = (past.first - past.start) / SPAN + blockIdx.z;
    const uint32_t start = past.start + span * SPAN;
    if (start >= past.end) return;
    // Blocks of the span with visible keys, and the visible keys of one block.
    const uint32_t seen_first = max_of(past.first, start);
    const uint32_t seen_end = min_of(past.end, start + SPAN);
    const uint32_t first_block = (seen_first - start) / LANES;
    const uint32_t end_block = (seen_end - start + LANES - 1) / LANES;
    const float *from = args.q + ((uint64_t)row * args.n_head + head) * args.head_dim;
    // Keys are padded with zeros to whole chunks, and so are queries.
    for (uint32_t i = threadIdx.x; i < (args.head_dim + LANES - 1) / LANES * LANES; i += THREADS) {
        q[i] = i < args.head_dim ? from[i] : 0.0f;
    }
    __syncthreads();
    const uint32_t block = first_block + warp();
    if (block < end_block) {
        const uint32_t key = start + block * LANES + lane();
        float value = minus_infinity();
        if (key >= seen_first && key < seen_end) {
            const uint64_t at = head_offset<KEYS>(head_kv, key, args.k_rows, args.head_dim);
            // Prefetches the values while the weights are computed.
            prefetch_head<VALUES>(args.v + head_offset<VALUES>(head_kv, key, args.v_rows, args.head_dim),
                                  args.head_dim);
            value = score(q, args.k + at, args.head_dim) * args.scale;
        }
        weights[block][lane()] = value;
        const float most = max_lanes(value);
        if (lane() == 0) largest[block] = most;
    }
    __syncthreads();
    if (block < end_block) {
        float before = minus_infinity();
        for (uint32_t i = first_block; i < block; i++) before = fmaxf(before, largest[i]);
        const float most = fmaxf(before, largest[block]);
        const float weight = exponential(weights[block][lane()] - most);
        weights[block][lane()] = weight;
        const float sum = sum_lanes(weight);
        if (lane() == 0) {
            corrections[block] = exponential(before - most);
            sums[block] = sum;
        }
    }
    __syncthreads();
    float *state = args.state(row, head, blockIdx.z);
    if (threadIdx.x == 0) {
        float most = minus_infinity(), sum = 0.0f;
        for (uint32_t block = first_block; block < end_block; block++) {
            most = fmaxf(most, largest[block]);
            sum = sum * corrections[block] + sums[block];
        }
        state[0] = most;
        state[1] = sum;
    }
    const uint8_t *values = args.v + head_offset<VALUES>(head_kv, start, args.v_rows, args.head_dim);
    const uint64_t stride = head_offset<VALUES>(0, 1, args.v_rows, args.head_dim);
    const auto weigh_block = [&](uint32_t block, uint32_t column) {
        const uint32_t first = start + block * LANES;
        const uint8_t *chunk = values + block * LANES * stride + column / LANES * VALUES::CHUNK;
        return weigh(weights[block], chunk, stride, column % LANES, max_of(seen_first, first) - first,
                     min_of(seen_end - first, LANES));
    };
    const bool is_narrow = args.head_dim <= NARROW;
    if (is_narrow) {
        const uint32_t width = (args.head_dim + LANES - 1) / LANES * LANES;
        const uint32_t column = threadIdx.x % width, n_group = THREADS / width;
        uint32_t block = first_block + threadIdx.x / width;
        // Threads beyond the last column have no work.
        if (column >= args.head_dim || threadIdx.x / width >= n_group) block = end_block;
        for (; block < end_block; block += n_group) products[block][column] = weigh_block(block, column);
        __syncthreads();
    }
    for (uint32_t column = threadIdx.x; column < args.head_dim; column += THREADS) {
        float total = 0.0f;
        for (uint32_t block = first_block; block < end_block; block++) {
            const float product = is_narrow ? products[block][column] : weigh_block(block, column);
            total = fmaf(corrections[block], total, product);
        }
        state[2 + column] = total;
    }
}

/// Joins the states of all spans of a head of a row, in order.
DEVICE void join(const Attention &args) {
    const uint32_t head = blockIdx.x, row = blockIdx.y;
    const Past past = args.pasts[row];
    const uint32_t first_span = (past.first - past.start) / SPAN;
    const uint32_t n_span = (past.end - past.start + SPAN - 1) / SPAN - first_span;
    float *out = args.out + ((uint64_t)row * args.n_head + head) * args.head_dim;
    for (uint32_t column = threadIdx.x; column < args.head_dim; column += blockDim.x) {
        float most = args.sinks == nullptr ? minus_infinity() : args.sinks[head];
        float sum = args.sinks == nullptr ? 0.0f : 1.0f;
        float total = 0.0f;
        for (uint32_t span = 0; span < n_span; span++) {
            const float *state = args.state(row, head, span);
            // The span has no visible keys.
            if (state[1] == 0.0f) continue;
            const float both = fmaxf(most, state[0]);
            const float old = exponential(most - both), later = exponential(state[0] - both);
            most = both;
            sum = sum * old + state[1] * later;
            total = fmaf(later, state[2 + column], old * total);
        }
        // Normalises the sign of zero, which may depend on keys with a weight of zero.
        const float value = total / sum + 0.0f;
        out[column] = value;
        store_quant(args.quantized, (out - args.out) + column, value);
    }
}

/// One block per span of a head of a row. Complete if no row has more than one span.
KERNEL(attend_span, THREADS, Attention) {
    attend(args);
    if (args.n_span > 1) return;
    __syncthreads();
    join(args);
}

/// One block per head of a row.
KERNEL(join_spans, JOIN_THREADS, Attention) { join(args); }
