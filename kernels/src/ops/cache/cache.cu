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
