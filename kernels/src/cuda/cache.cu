// Rounding rows to the type of a cache, CELLS. Compiled for each type.
#include "cache.cuh"

constexpr uint32_t WARPS = 4;

struct StoreRows {
    const float *src;
    const uint32_t *rows;
    uint8_t *cache;
    /// Rows to store, and those of the cache.
    uint32_t n_stored;
    uint32_t n_rows;
    uint32_t n_head;
    uint32_t head_dim;
};

/// One warp a head of a row.
KERNEL(store_rows, WARPS * LANES, StoreRows) {
    const uint32_t index = blockIdx.x * WARPS + warp();
    if (index >= args.n_stored * args.n_head) return;
    const uint32_t head = index % args.n_head;
    const float *src = args.src + (uint64_t)index * args.head_dim;
    const uint32_t row = args.rows[index / args.n_head];
    uint8_t *chunk = args.cache + head_offset<CELLS>(head, row, args.n_rows, args.head_dim);
    for (uint32_t at = 0; at < args.head_dim; at += LANES, chunk += CELLS::CHUNK) {
        const uint32_t i = at + lane();
        CELLS::store(chunk, i < args.head_dim ? src[i] : 0.0f);
    }
}
