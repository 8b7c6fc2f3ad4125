// Unpacks blocks of quantized types to tiles: 32 columns of a row as signed bytes, and their scales.
//
// An element is `scale * (quant - OFFSET) + minus_min`; the layouts are those of `kernels/src/types`. OFFSET is 0
// for types whose quants fit signed bytes without it. A tile is eight words of four quants each; a thread takes
// words `t` and `t + 4`, t below 4, which is the layout of tensor cores.
#pragma once
#include "common.cuh"

/// Factors and minima of the quants of a tile: one for all columns, or one for each half.
template <int SCALES>
struct TileScales {
    float scale[SCALES];
    float minus_min[SCALES];
};

/// The index of a tile in its block: `first`, a multiple of two or four, plus `more`. The compiler knows `more`
/// where several tiles are unpacked, and so which of them are in the same bytes.
struct TileIndex {
    uint32_t first, more;

    __device__ __forceinline__ operator uint32_t() const { return first + more; }

    /// The start of the `n` bytes of the tile's pair, or of its group of four.
    __device__ __forceinline__ const uint8_t *of_pair(const uint8_t *bytes, uint32_t n) const {
        return bytes + first / 2 * n + more / 2 * n;
    }
    __device__ __forceinline__ const uint8_t *of_four(const uint8_t *bytes, uint32_t n) const {
        return bytes + first / 4 * n;
    }
};

/// Byte `i` of a word.
DEVICE uint32_t byte_of(uint32_t word, uint32_t i) { return (word >> (8 * i)) & 0xff; }

/// A type in blocks of `BYTES`, with one or more tiles.
template <int BYTES_, int OFFSET_, bool HAS_MINS_, int TILES_ = 1, int SCALES_ = 1>
struct Layout {
    static constexpr bool IS_QUANTIZED = true;
    static constexpr int BYTES = BYTES_;
    static constexpr int OFFSET = OFFSET_;
    static constexpr bool HAS_MINS = HAS_MINS_;
    static constexpr int TILES = TILES_;
    static constexpr int SCALES = SCALES_;
    /// True if the scales of several rows are decoded together, by `scales_of_rows`.
    static constexpr bool DECODES_ROWS = false;
    /// Alignment of blocks in bytes.
    static constexpr int ALIGN = BYTES % 16 == 0 ? 16 : BYTES % 4 == 0 ? 4 : BYTES % 2 == 0 ? 2 : 1;
    typedef TileScales<SCALES_> Scales;

    /// The block that contains a tile of a row.
    static __device__ __forceinline__ const uint8_t *block(const uint8_t *row, uint32_t tile) {
        return row + tile / TILES * BYTES;
    }

    /// The block of the tile `more`, below QUAD, after one of this block. Tiles that are unpacked together are
    /// in the same block, or start with a block.
    static __device__ __forceinline__ const uint8_t *block_after(const uint8_t *block, uint32_t more) {
        return TILES < 4 ? block + more / TILES * BYTES : block;
    }

    /// The index in its block of the tile `more` tiles after `first`.
    static __device__ __forceinline__ TileIndex index_after(uint32_t first, uint32_t more) {
        return TILES < 4 ? TileIndex{0, more % TILES} : TileIndex{first, more};
    }

    /// Word `i` of some bytes of a block.
    static __device__ __forceinline__ uint32_t word(const uint8_t *bytes, uint32_t i) {
        return load_word<ALIGN>(bytes + 4 * i);
    }

    /// A scale in half precision.
    static __device__ __forceinline__ float half_at(const uint8_t *block, uint32_t at) {
        return half_to_float(load_u16(block + at));
    }
};

/// A type with one tile per block, which starts with the scale.
template <int BYTES, int OFFSET = 0>
struct Scaled : Layout<BYTES, OFFSET, false> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, TileScales<1> &out) {
        out.scale[0] = half_to_float(load_u16(block));
    }
};

/// A type with one tile per block, which starts with the scale and the minimum.
template <int BYTES>
struct Affine : Layout<BYTES, 0, true> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, TileScales<1> &out) {
        out.scale[0] = half_to_float(load_u16(block));
        out.minus_min[0] = half_to_float(load_u16(block + 2));
    }
};

/// Splits a word of nibbles: the low ones are in the first half of the columns.
DEVICE void nibbles(uint32_t word, uint32_t (&quants)[2]) {
    quants[0] = word & 0x0f0f0f0fu;
    quants[1] = (word >> 4) & 0x0f0f0f0fu;
}

/// Splits a word of nibbles and looks each of them up in a table of sixteen values.
DEVICE void values(uint32_t word, const uint32_t (&table)[4], uint32_t (&quants)[2]) {
    uint32_t found[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Three bits of a nibble select one of eight values, the fourth selects between two of these.
        const uint32_t four = word >> (16 * half);
        const uint32_t low = __byte_perm(table[0], table[1], four & 0x7777u);
        const uint32_t high = __byte_perm(table[2], table[3], four & 0x7777u);
        found[half] = __byte_perm(low, high, 0x3210u | ((four & 0x8888u) >> 1));
    }
    quants[0] = __byte_perm(found[0], found[1], 0x6420u);
    quants[1] = __byte_perm(found[0], found[1], 0x7531u);
}

/// Moves bits `4 word` to `4 word + 3` to the bottom of the bytes of a word.
DEVICE uint32_t spread_bits(uint32_t bits, uint32_t word) {
    // Copies shifted by seven bits put bit `i` at the bottom of byte `i`.
    return ((bits >> 4 * word & 15) * 0x00204081u) & 0x01010101u;
}

/// Moves the four pairs of bits of a byte to the bottom of the bytes of a word.
DEVICE uint32_t spread_pairs(uint32_t byte) {
    const uint32_t nibbles = (byte | byte << 12) & 0x000f000fu;
    return (nibbles | nibbles << 6) & 0x03030303u;
}

/// Adds the fifth bit of each quant to the words `t` and `t + 4`; `fifth` has one bit per column of the tile.
DEVICE void add_fifth_bits(uint32_t fifth, uint32_t t, uint32_t (&quants)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) quants[i] |= spread_bits(fifth, t + 4 * i) << 4;
}

/// Decodes the scales of tile `index` of a block in each of N rows.
template <class T, int N>
DEVICE void load_scales(const uint8_t *const (&blocks)[N], uint32_t index, typename T::Scales (&out)[N]) {
    if constexpr (T::DECODES_ROWS) {
        T::scales_of_rows(blocks, index, out);
    } else {
#pragma unroll
        for (int row = 0; row < N; row++) T::scales(blocks[row], index, out[row]);
    }
}
