// Moving rows, without arithmetic.
#include "common.cuh"

struct GatherRows {
    const float *src;
    float *dst;
    const uint32_t *rows;
    uint64_t dim;
    uint64_t len;
};

/// Copies row `rows[i]` of `src` to row `i` of `dst`.
KERNEL(gather_rows, 256, GatherRows) {
    const uint64_t i = place();
    if (i < args.len) args.dst[i] = args.src[args.rows[i / args.dim] * args.dim + i % args.dim];
}

struct CopyBytes {
    const uint8_t *src;
    uint8_t *dst;
    uint64_t len;
};

/// Copies `len` bytes, sixteen per thread.
KERNEL(copy, 256, CopyBytes) {
    const uint64_t i = 16 * place();
    const uint8_t *from = args.src + i;
    uint8_t *to = args.dst + i;
    const uint64_t addresses = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to);
    if (i + 16 <= args.len && addresses % 16 == 0) {
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
        return;
    }
    for (uint32_t k = 0; k < 16 && i + k < args.len; k++) to[k] = from[k];
}

struct CopyColumns {
    const float *src;
    float *dst;
    uint64_t from_stride;
    uint64_t from_offset;
    uint64_t to_stride;
    uint64_t to_offset;
    uint64_t width;
    uint64_t len;
};

KERNEL(copy_columns, 256, CopyColumns) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const uint64_t row = i / args.width, column = i % args.width;
    args.dst[row * args.to_stride + args.to_offset + column] =
        args.src[row * args.from_stride + args.from_offset + column];
}
