// Blocks of every quantized type as tiles: 32 columns of a row as small codes, and their scales.
//
// An element is `scale * (code - OFFSET) + minus_min`; the layouts are those of the codecs in
// `kernels/src/quant`. Codes are signed bytes: types whose codes do not fit without an offset have none.
// A tile is eight words of four codes each; a thread takes the words `t` and `t + 4` of it, t below 4,
// which is how tensor cores want them.
#pragma once
#include "common.cuh"

/// What the codes of a tile are multiplied with: one scale for all columns, or one for each half.
template <int SCALES>
struct TileScales {
    float scale[SCALES];
    float minus_min[SCALES];
};

/// A tile of a block: `first`, a multiple of two or four, and `more`, which is less, and which the compiler
/// knows where several tiles are unpacked. So it sees which of them lie in the same bytes.
struct TileIndex {
    uint32_t first, more;

    __device__ __forceinline__ operator uint32_t() const { return first + more; }

    /// Where the tile's pair, or its four, has so many bytes of its own, behind those before it.
    __device__ __forceinline__ const uint8_t *of_pair(const uint8_t *bytes, uint32_t n) const {
        return bytes + first / 2 * n + more / 2 * n;
    }
    __device__ __forceinline__ const uint8_t *of_four(const uint8_t *bytes, uint32_t n) const {
        return bytes + first / 4 * n;
    }
};

/// Byte `i` of a word.
DEVICE uint32_t byte_of(uint32_t word, uint32_t i) { return (word >> (8 * i)) & 0xff; }

/// A type in blocks of `BYTES`, of one or more tiles.
template <int BYTES_, int OFFSET_, bool HAS_MINS_, int TILES_ = 1, int SCALES_ = 1>
struct Layout {
    static constexpr int BYTES = BYTES_;
    static constexpr int OFFSET = OFFSET_;
    static constexpr bool HAS_MINS = HAS_MINS_;
    static constexpr int TILES = TILES_;
    static constexpr int SCALES = SCALES_;
    /// Whether scales of several rows are decoded together, by `scales_of_rows`.
    static constexpr bool DECODES_ROWS = false;
    /// Blocks lie at multiples of it.
    static constexpr int ALIGN = BYTES % 16 == 0 ? 16 : BYTES % 4 == 0 ? 4 : BYTES % 2 == 0 ? 2 : 1;
    typedef TileScales<SCALES_> Scales;

    /// The block with a tile of a row.
    static __device__ __forceinline__ const uint8_t *block(const uint8_t *row, uint32_t tile) {
        return row + tile / TILES * BYTES;
    }

    /// The block of a tile `more` behind one of this block: where a block has several tiles, those that are
    /// unpacked together are all of it.
    static __device__ __forceinline__ const uint8_t *behind(const uint8_t *block, uint32_t more) {
        return TILES == 1 ? block + more * BYTES : block;
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

/// A type of one tile a block, behind its scale.
template <int BYTES, int OFFSET = 0>
struct Scaled : Layout<BYTES, OFFSET, false> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, TileScales<1> &out) {
        out.scale[0] = half_to_float(load_u16(block));
    }
};

/// The same with a least element behind the scale.
template <int BYTES>
struct Affine : Layout<BYTES, 0, true> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, TileScales<1> &out) {
        out.scale[0] = half_to_float(load_u16(block));
        out.minus_min[0] = half_to_float(load_u16(block + 2));
    }
};

/// A word of nibbles: the low ones are the first half of the columns.
DEVICE void nibbles(uint32_t word, uint32_t (&codes)[2]) {
    codes[0] = word & 0x0f0f0f0fu;
    codes[1] = (word >> 4) & 0x0f0f0f0fu;
}

/// The same, each nibble an index into sixteen values.
DEVICE void values(uint32_t word, const uint32_t (&table)[4], uint32_t (&codes)[2]) {
    uint32_t found[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Three bits of a nibble select among eight values, the fourth between two such.
        const uint32_t four = word >> (16 * half);
        const uint32_t low = __byte_perm(table[0], table[1], four & 0x7777u);
        const uint32_t high = __byte_perm(table[2], table[3], four & 0x7777u);
        found[half] = __byte_perm(low, high, 0x3210u | ((four & 0x8888u) >> 1));
    }
    codes[0] = __byte_perm(found[0], found[1], 0x6420u);
    codes[1] = __byte_perm(found[0], found[1], 0x7531u);
}

/// Puts one bit for each column of a tile, the fifth of its code, into the words `t` and `t + 4`.
DEVICE void add_fifth_bits(uint32_t fifth, uint32_t t, uint32_t (&codes)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t four = (fifth >> (4 * t + 16 * i)) & 15;
        // Copies seven bits further put bit `i` at the bottom of byte `i`.
        const uint32_t spread = (four * 0x00204081u) & 0x01010101u;
        codes[i] |= spread << 4;
    }
}

struct Q8_0 : Scaled<34> {
    static __device__ __forceinline__ void codes(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        out[0] = word(block + 2, t);
        out[1] = word(block + 2, t + 4);
    }
};

struct Q4_0 : Scaled<18, 8> {
    static __device__ __forceinline__ void codes(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 2, t), out);
    }
};

struct Q4_1 : Affine<20> {
    static __device__ __forceinline__ void codes(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 4, t), out);
    }
};

struct Q5_0 : Scaled<22, 16> {
    static __device__ __forceinline__ void codes(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 6, t), out);
        add_fifth_bits(word(block + 2, 0), t, out);
    }
};

struct Q5_1 : Affine<24> {
    static __device__ __forceinline__ void codes(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 8, t), out);
        add_fifth_bits(word(block + 4, 0), t, out);
    }
};

/// Nibbles as -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
DEVICE void uneven_steps(uint32_t word, uint32_t (&codes)[2]) {
    const uint32_t table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    values(word, table, codes);
}

struct IQ4_NL : Scaled<18> {
    static __device__ __forceinline__ void codes(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        uneven_steps(word(block + 2, t), out);
    }
};

struct MXFP4 : Layout<17, 0, false> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, Scales &out) {
        // Codes are doubled, so the scale is halved.
        const uint32_t e = block[0];
        out.scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
    static __device__ __forceinline__ void codes(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        // 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
        const uint32_t table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
        values(word(block + 1, t), table, out);
    }
};

/// The same byte of up to four words, in one.
template <int N>
DEVICE uint32_t gather_bytes(const uint32_t (&words)[N], uint32_t i) {
    if constexpr (N == 1) return words[0] >> (8 * i);
    const uint32_t pair = i | (i + 4) << 4;
    const uint32_t first = __byte_perm(words[0], words[N > 1 ? 1 : 0], pair);
    if constexpr (N == 2) return first;
    const uint32_t second = __byte_perm(words[N > 2 ? 2 : 0], words[N > 3 ? 3 : 0], pair);
    return __byte_perm(first, second, 0x5410u);
}

/// Scales and minima of eight tiles: six bits each, twelve bytes behind two factors.
template <int BYTES>
struct AffineTiles : Layout<BYTES, 0, true, 8> {
    static constexpr bool DECODES_ROWS = true;

    /// Those of one tile of N rows, up to four, of which each has a byte of a word.
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
        // The first four have six bits of a byte, the others four bits of one more, and two that those left.
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

struct Q4_K : AffineTiles<144> {
    static __device__ __forceinline__ void codes(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_pair(block + 16, 32), t + 4 * i);
            out[i] = low >> index.more % 2 * 4 & 0x0f0f0f0fu;
        }
    }
};

struct Q5_K : AffineTiles<176> {
    static __device__ __forceinline__ void codes(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_pair(block + 48, 32), t + 4 * i);
            const uint32_t high = word(block + 16, t + 4 * i);
            out[i] = (low >> index.more % 2 * 4 & 0x0f0f0f0fu) | (high >> index & 0x01010101u) << 4;
        }
    }
};

struct Q6_K : Layout<210, 32, false, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 208);
        const uint32_t both = load_u16(block + 192 + 2 * index);
        out.scale[0] = d * (float)(int8_t)both;
        out.scale[1] = d * (float)(int8_t)(both >> 8);
    }
    static __device__ __forceinline__ void codes(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_four(block, 64) + index.more % 2 * 32, t + 4 * i);
            const uint32_t high = word(index.of_four(block + 128, 32), t + 4 * i);
            const uint32_t low_shift = (index.first / 2 + index.more / 2) % 2 * 4;
            out[i] = (low >> low_shift & 0x0f0f0f0fu) | (high >> index % 4 * 2 & 0x03030303u) << 4;
        }
    }
};

struct Q2_K : Layout<84, 0, true, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 80), minus_dmin = -half_at(block, 82);
        const uint32_t both = load_u16(block + 2 * index);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out.scale[half] = d * (float)(both >> 8 * half & 15);
            out.minus_min[half] = minus_dmin * (float)(both >> (8 * half + 4) & 15);
        }
    }
    static __device__ __forceinline__ void codes(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_four(block + 16, 32), t + 4 * i);
            out[i] = low >> index % 4 * 2 & 0x03030303u;
        }
    }
};

struct Q3_K : Layout<110, 4, false, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 108);
        // Sixteen scales: low nibbles of eight bytes, then their high ones; two bits more in four. The
        // two of a tile are neighbours in both.
        const uint32_t j = 2 * index;
        const uint32_t low = (uint32_t)load_u16(block + 96 + j % 8) >> j / 8 * 4;
        const uint32_t high = (uint32_t)load_u16(block + 104 + j % 4) >> j / 4 * 2;
        const uint32_t both = (low & 0x0f0fu) | (high & 0x0303u) << 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out.scale[half] = d * ((float)(both >> 8 * half & 63) - 32.0f);
        }
    }
    static __device__ __forceinline__ void codes(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_four(block + 32, 32), t + 4 * i);
            const uint32_t high = word(block, t + 4 * i);
            out[i] = (low >> index % 4 * 2 & 0x03030303u) | (high >> index & 0x01010101u) << 2;
        }
    }
};

struct IQ4_XS : Layout<136, 0, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const uint32_t first = word(block, 0);
        const uint32_t low = word(block + 4, 0) >> 4 * index & 15;
        const uint32_t high = first >> (16 + 2 * index) & 3;
        out.scale[0] = half_to_float((uint16_t)first) * ((float)(low | high << 4) - 32.0f);
    }
    static __device__ __forceinline__ void codes(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
        uneven_steps(word(block + 8 + 16 * index, t), out);
    }
};

/// Scales of the tile `index` of a block in each of N rows.
template <class T, int N>
DEVICE void load_scales(const uint8_t *const (&blocks)[N], uint32_t index, typename T::Scales (&out)[N]) {
    if constexpr (T::DECODES_ROWS) {
        T::scales_of_rows(blocks, index, out);
    } else {
#pragma unroll
        for (int row = 0; row < N; row++) T::scales(blocks[row], index, out[row]);
    }
}
