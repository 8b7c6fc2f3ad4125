// The superblock shared by Q4_K and Q5_K; see superblock.rs.
#pragma once
#include "unpack.cuh"

/// The same byte of up to four words, as one word.
template <int N>
DEVICE uint32_t gather_bytes(const uint32_t (&words)[N], uint32_t i) {
    if constexpr (N == 1) return words[0] >> (8 * i);
    const uint32_t pair = i | (i + 4) << 4;
    const uint32_t first = __byte_perm(words[0], words[N > 1 ? 1 : 0], pair);
    if constexpr (N == 2) return first;
    const uint32_t second = __byte_perm(words[N > 2 ? 2 : 0], words[N > 3 ? 3 : 0], pair);
    return __byte_perm(first, second, 0x5410u);
}

/// Scales and minima of eight tiles: six bits each, in twelve bytes after the two block scales.
template <int BYTES>
struct AffineTiles : Layout<BYTES, 0, true, 8> {
    static constexpr bool DECODES_ROWS = true;

    /// Scales and minima of one tile of N rows, up to four; each row uses one byte of a word.
    template <int N>
    static __device__ __forceinline__ void scales_of_rows(const uint8_t *const (&blocks)[N], uint32_t index,
                                                          TileScales<1> (&out)[N]) {
        uint32_t factors[N], words[3][N];
#pragma unroll
        for (int row = 0; row < N; row++) {
            uint32_t quad[4];
            load_quad(blocks[row], quad);
            factors[row] = quad[0];
#pragma unroll
            for (int i = 0; i < 3; i++) words[i][row] = quad[1 + i];
        }
        // The first four tiles have six bits of a byte; the others have four bits of another byte and the two bits
        // that the first four do not use.
        const uint32_t first = gather_bytes(words[0], index % 4), second = gather_bytes(words[1], index % 4);
        const uint32_t rest = gather_bytes(words[2], index % 4);
        const uint32_t scales = index < 4 ? first & 0x3f3f3f3fu
                                          : (rest & 0x0f0f0f0fu) | (first >> 2 & 0x30303030u);
        const uint32_t mins = index < 4 ? second & 0x3f3f3f3fu
                                        : (rest >> 4 & 0x0f0f0f0fu) | (second >> 2 & 0x30303030u);
#pragma unroll
        for (int row = 0; row < N; row++) {
            const float factor = half_to_float((uint16_t)factors[row]);
            const float minus_factor = -half_to_float((uint16_t)(factors[row] >> 16));
            out[row].scale[0] = factor * (float)byte_of(scales, row);
            out[row].minus_min[0] = minus_factor * (float)byte_of(mins, row);
        }
    }
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, TileScales<1> &out) {
        const uint8_t *const blocks[1] = {block};
        TileScales<1> of_rows[1];
        scales_of_rows(blocks, index, of_rows);
        out = of_rows[0];
    }
};

