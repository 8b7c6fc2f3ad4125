// Choice of compressed positions, in the CPU's order (see `kernels/src/ops/compression/cpu.rs`). Compiled for each type
// CELLS.
#include "cache.cuh"

constexpr uint32_t THREADS = 256;

/// Visible cache rows of a query.
struct Visible {
    uint32_t start;
    uint32_t end;
};

struct Indexer {
    const float *q;
    const float *weights;
    const uint8_t *k;
    const Visible *visible;
    /// (rows, capacity)
    float *scores;
    /// (rows, n_chosen)
    uint32_t *chosen;
    uint32_t k_rows;
    uint32_t n_head;
    uint32_t head_dim;
    uint32_t n_chosen;
    uint32_t capacity;
    uint32_t unused;
};

/// Scores the visible keys of a query, one per thread.
KERNEL(score_rows, THREADS, Indexer) {
    const uint32_t row = blockIdx.y;
    const Visible visible = args.visible[row];
    const uint32_t i = (uint32_t)place(), n = visible.end - visible.start;
    if (i >= n || n <= args.n_chosen) return;
    const uint8_t *key = args.k + head_offset<CELLS>(0, visible.start + i, args.k_rows, args.head_dim);
    const float *q = args.q + (uint64_t)row * args.n_head * args.head_dim;
    const float *weights = args.weights + (uint64_t)row * args.n_head;
    float score = 0.0f;
    for (uint32_t head = 0; head < args.n_head; head++, q += args.head_dim) {
        float dot = 0.0f;
        for (uint32_t at = 0; at < args.head_dim; at += LANES) {
            const uint8_t *chunk = key + at / LANES * CELLS::CHUNK;
            float product = 0.0f;
            for (uint32_t part = 0; part < LANES / 8; part++) {
                float x[8];
                CELLS::load(chunk, part, x);
#pragma unroll
                for (uint32_t j = 0; j < 8; j++) {
                    const uint32_t column = at + 8 * part + j;
                    if (column < args.head_dim) product = fmaf(q[column], x[j], product);
                }
            }
            dot += product;
        }
        const float positive = dot < 0.0f ? 0.0f : dot;
        score += positive * weights[head];
    }
    args.scores[(uint64_t)row * args.capacity + i] = score;
}

/// Maps a number to an integer of the same order; both zeros are equal.
DEVICE uint32_t rank(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Chooses the rows of one query. One block.
KERNEL(choose_rows, THREADS, Indexer) {
    __shared__ uint32_t counts[THREADS], equals[THREADS];
    const uint32_t row = blockIdx.x, thread = threadIdx.x;
    const Visible visible = args.visible[row];
    const uint32_t n = visible.end - visible.start;
    uint32_t *chosen = args.chosen + (uint64_t)row * args.n_chosen;
    if (n <= args.n_chosen) {
        for (uint32_t i = thread; i < n; i += THREADS) chosen[i] = i;
        return;
    }
    const float *scores = args.scores + (uint64_t)row * args.capacity;
    // Each thread has consecutive rows.
    const uint32_t each = (n + THREADS - 1) / THREADS;
    const uint32_t first = min_of(thread * each, n), end = min_of(first + each, n);
    // The largest rank that at least n_chosen rows reach, bit by bit.
    uint32_t least = 0;
    for (uint32_t bit = 0x80000000u; bit > 0; bit >>= 1) {
        const uint32_t tried = least | bit;
        uint32_t count = 0;
        for (uint32_t i = first; i < end; i++) count += rank(scores[i]) >= tried ? 1 : 0;
        counts[thread] = count;
        __syncthreads();
        uint32_t total = 0;
        for (uint32_t i = 0; i < THREADS; i++) total += counts[i];
        if (total >= args.n_chosen) least = tried;
        __syncthreads();
    }
    uint32_t larger = 0, equal = 0;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t found = rank(scores[i]);
        larger += found > least ? 1 : 0;
        equal += found == least ? 1 : 0;
    }
    counts[thread] = larger;
    equals[thread] = equal;
    __syncthreads();
    uint32_t n_larger = 0, before = 0, equal_before = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        n_larger += counts[i];
        before += i < thread ? counts[i] : 0;
        equal_before += i < thread ? equals[i] : 0;
    }
    // Of the rows with the least rank, the first ones are chosen.
    const uint32_t n_equal = args.n_chosen - n_larger;
    uint32_t at = before + min_of(equal_before, n_equal);
    for (uint32_t i = first; i < end; i++) {
        const uint32_t found = rank(scores[i]);
        const bool is_chosen = found > least || (found == least && equal_before < n_equal);
        if (found == least) equal_before += 1;
        if (is_chosen) chosen[at++] = i;
    }
}
