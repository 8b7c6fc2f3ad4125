// Stores rows in a cache of type CELLS. Compiled for each type.
#include "cache.cuh"

constexpr uint32_t WARPS = 4;

struct StoreRows {
    const float *src;
    const uint32_t *rows;
    uint8_t *cache;
    /// Rows to store, and rows of the cache.
    uint32_t n_stored;
    uint32_t n_rows;
    uint32_t n_head;
    uint32_t head_dim;
};

/// One warp per head of a row.
KERNEL(store_rows, WARPS * LANES, Joined<StoreRows>) {
    const StoreRows &store = args.each[blockIdx.z];
    const uint32_t index = blockIdx.x * WARPS + warp();
    if (index >= store.n_stored * store.n_head) return;
    const uint32_t head = index % store.n_head;
    const float *src = store.src + (uint64_t)index * store.head_dim;
    const uint32_t row = store.rows[index / store.n_head];
    uint8_t *chunk = store.cache + head_offset<CELLS>(head, row, store.n_rows, store.head_dim);
    for (uint32_t at = 0; at < store.head_dim; at += LANES, chunk += CELLS::CHUNK) {
        const uint32_t i = at + lane();
        CELLS::store(chunk, i < store.head_dim ? src[i] : 0.0f);
    }
}

/// Rows that a query attends to.
struct Gathered {
    uint32_t query;
    uint32_t first;
    uint32_t n_first;
    uint32_t second;
    uint32_t n_second;
    uint32_t to;
};

struct GatherCached {
    const uint8_t *first;
    const uint8_t *second;
    /// Indices of rows of the second cache, from the first one of a query on, or null.
    const uint32_t *chosen;
    const Gathered *parts;
    uint8_t *to;
    uint32_t n_chosen;
    uint32_t head_bytes;
};

/// One warp per row; the second block index is that of the query's entry.
KERNEL(gather_cached, WARPS * LANES, GatherCached) {
    const Gathered part = args.parts[blockIdx.y];
    const uint32_t i = blockIdx.x * WARPS + warp();
    if (i >= part.n_first + part.n_second) return;
    const uint8_t *from;
    if (i < part.n_first) {
        from = args.first + (uint64_t)(part.first + i) * args.head_bytes;
    } else {
        uint32_t row = i - part.n_first;
        if (args.chosen != nullptr) row = args.chosen[(uint64_t)part.query * args.n_chosen + row];
        from = args.second + (uint64_t)(part.second + row) * args.head_bytes;
    }
    uint8_t *to = args.to + (uint64_t)(part.to + i) * args.head_bytes;
    // Every type has chunks of an even number of bytes.
    for (uint32_t at = 2 * lane(); at < args.head_bytes; at += 2 * LANES) {
        *reinterpret_cast<uint16_t *>(to + at) = *reinterpret_cast<const uint16_t *>(from + at);
    }
}
