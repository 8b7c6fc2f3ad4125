// Blocks of every quantized type as tiles: 32 columns of a row as small codes, and their scales.
//
// An element is `scale * (code - OFFSET) + minus_min`; the layouts are those of the codecs in
// `kernels/src/quant`. Codes are signed bytes: types whose codes do not fit without an offset have none.
#pragma once
#include "common.cuh"

/// One scale for all columns of a tile, or one for each half.
template <int SCALES>
struct Tile {
    /// Four columns each.
    uint32_t codes[8];
    float scale[SCALES];
    float minus_min[SCALES];
};

/// Byte `i` of a word.
DEVICE uint32_t byte_of(uint32_t word, uint32_t i) { return (word >> (8 * i)) & 0xff; }

/// The codes in sixteen bytes of nibbles: the low ones are the first half of the columns.
DEVICE void nibbles(const uint8_t *bytes, uint32_t (&codes)[8]) {
    uint32_t words[4];
    load_words(bytes, words);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        codes[i] = words[i] & 0x0f0f0f0fu;
        codes[i + 4] = (words[i] >> 4) & 0x0f0f0f0fu;
    }
}

/// The same, each nibble an index into sixteen values.
DEVICE void values(const uint8_t *bytes, const uint32_t (&table)[4], uint32_t (&codes)[8]) {
    uint32_t words[4];
    load_words(bytes, words);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t found[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // Three bits of a nibble select among eight values, the fourth between two such.
            const uint32_t four = words[i] >> (16 * half);
            const uint32_t low = __byte_perm(table[0], table[1], four & 0x7777u);
            const uint32_t high = __byte_perm(table[2], table[3], four & 0x7777u);
            found[half] = __byte_perm(low, high, 0x3210u | ((four & 0x8888u) >> 1));
        }
        codes[i] = __byte_perm(found[0], found[1], 0x6420u);
        codes[i + 4] = __byte_perm(found[0], found[1], 0x7531u);
    }
}

/// Puts one bit for each column, the fifth of its code, into the codes.
DEVICE void add_fifth_bits(uint32_t fifth, uint32_t (&codes)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t four = (fifth >> (4 * i)) & 15;
        // Copies seven bits further put bit `i` at the bottom of byte `i`.
        const uint32_t spread = (four * 0x00204081u) & 0x01010101u;
        codes[i] |= spread << 4;
    }
}

/// A type with one scale for each 32 columns, in blocks of `BYTES`.
template <int BYTES_, int OFFSET_, bool HAS_MINS_, int TILES_ = 1, int SCALES_ = 1>
struct Layout {
    static constexpr int BYTES = BYTES_;
    static constexpr int OFFSET = OFFSET_;
    static constexpr bool HAS_MINS = HAS_MINS_;
    static constexpr int TILES = TILES_;
    static constexpr int SCALES = SCALES_;
    typedef ::Tile<SCALES_> Tile;
};

struct Q8_0 : Layout<34, 0, false> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t, Tile &tile) {
        tile.scale[0] = half_to_float(load_u16(block));
        load_words(block + 2, tile.codes);
    }
};

struct Q4_0 : Layout<18, 8, false> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t, Tile &tile) {
        tile.scale[0] = half_to_float(load_u16(block));
        nibbles(block + 2, tile.codes);
    }
};

struct Q4_1 : Layout<20, 0, true> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t, Tile &tile) {
        tile.scale[0] = half_to_float(load_u16(block));
        tile.minus_min[0] = half_to_float(load_u16(block + 2));
        nibbles(block + 4, tile.codes);
    }
};

struct Q5_0 : Layout<22, 16, false> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t, Tile &tile) {
        uint32_t fifth[1];
        tile.scale[0] = half_to_float(load_u16(block));
        load_words(block + 2, fifth);
        nibbles(block + 6, tile.codes);
        add_fifth_bits(fifth[0], tile.codes);
    }
};

struct Q5_1 : Layout<24, 0, true> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t, Tile &tile) {
        uint32_t fifth[1];
        tile.scale[0] = half_to_float(load_u16(block));
        tile.minus_min[0] = half_to_float(load_u16(block + 2));
        load_words(block + 4, fifth);
        nibbles(block + 8, tile.codes);
        add_fifth_bits(fifth[0], tile.codes);
    }
};

/// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
struct UnevenSteps {
    static __device__ __forceinline__ void look_up(const uint8_t *bytes, uint32_t (&codes)[8]) {
        const uint32_t table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
        values(bytes, table, codes);
    }
};

struct IQ4_NL : Layout<18, 0, false> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t, Tile &tile) {
        tile.scale[0] = half_to_float(load_u16(block));
        UnevenSteps::look_up(block + 2, tile.codes);
    }
};

struct MXFP4 : Layout<17, 0, false> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t, Tile &tile) {
        // 0, 1, 2, 3, 4, 6, 8, 12 and their negatives: doubled, so the scale is halved.
        const uint32_t table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
        const uint32_t e = block[0];
        tile.scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        values(block + 1, table, tile.codes);
    }
};

/// Scales and minima of Q4_K and Q5_K: six bits each, twelve bytes behind two factors.
template <class T>
DEVICE void affine_scales(const uint8_t *block, uint32_t index, T &tile) {
    uint32_t words[4];
    load_words(block, words);
    const uint32_t i = index % 4;
    uint32_t scale, min;
    if (index < 4) {
        scale = byte_of(words[1], i) & 63;
        min = byte_of(words[2], i) & 63;
    } else {
        const uint32_t rest = byte_of(words[3], i);
        scale = (rest & 15) | (byte_of(words[1], i) >> 6) << 4;
        min = (rest >> 4) | (byte_of(words[2], i) >> 6) << 4;
    }
    tile.scale[0] = half_to_float((uint16_t)words[0]) * (float)scale;
    tile.minus_min[0] = -half_to_float((uint16_t)(words[0] >> 16)) * (float)min;
}

struct Q4_K : Layout<144, 0, true, 8> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t index, Tile &tile) {
        affine_scales(block, index, tile);
        load_words(block + 16 + index / 2 * 32, tile.codes);
        const uint32_t shift = index % 2 * 4;
#pragma unroll
        for (int i = 0; i < 8; i++) tile.codes[i] = (tile.codes[i] >> shift) & 0x0f0f0f0fu;
    }
};

struct Q5_K : Layout<176, 0, true, 8> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t index, Tile &tile) {
        affine_scales(block, index, tile);
        uint32_t high[8];
        load_words(block + 16, high);
        load_words(block + 48 + index / 2 * 32, tile.codes);
        const uint32_t shift = index % 2 * 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            tile.codes[i] = (tile.codes[i] >> shift & 0x0f0f0f0fu) |
                            (high[i] >> index & 0x01010101u) << 4;
        }
    }
};

struct Q6_K : Layout<210, 32, false, 8, 2> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t index, Tile &tile) {
        const float d = half_to_float(load_u16(block + 208));
        const int8_t *scales = reinterpret_cast<const int8_t *>(block + 192 + 2 * index);
        tile.scale[0] = d * (float)scales[0];
        tile.scale[1] = d * (float)scales[1];
        const uint32_t part = index / 4, quarter = index % 4;
        uint32_t high[8];
        load_words(block + 128 + 32 * part, high);
        load_words(block + 64 * part + quarter % 2 * 32, tile.codes);
        const uint32_t shift = quarter / 2 * 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            tile.codes[i] = (tile.codes[i] >> shift & 0x0f0f0f0fu) |
                            (high[i] >> 2 * quarter & 0x03030303u) << 4;
        }
    }
};

struct Q2_K : Layout<84, 0, true, 8, 2> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t index, Tile &tile) {
        const float d = half_to_float(load_u16(block + 80));
        const float minus_dmin = -half_to_float(load_u16(block + 82));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t byte = block[2 * index + half];
            tile.scale[half] = d * (float)(byte & 15);
            tile.minus_min[half] = minus_dmin * (float)(byte >> 4);
        }
        load_words(block + 16 + index / 4 * 32, tile.codes);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            tile.codes[i] = tile.codes[i] >> index % 4 * 2 & 0x03030303u;
        }
    }
};

struct Q3_K : Layout<110, 4, false, 8, 2> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t index, Tile &tile) {
        const float d = half_to_float(load_u16(block + 108));
        uint32_t words[3];
        load_words(block + 96, words);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // Sixteen scales: low nibbles of eight bytes, then their high ones; two bits more in four.
            const uint32_t j = 2 * index + half;
            const uint32_t low = byte_of(words[j % 8 / 4], j % 4) >> j / 8 * 4 & 15;
            const uint32_t high = byte_of(words[2], j % 4) >> j / 4 * 2 & 3;
            tile.scale[half] = d * ((float)(low | high << 4) - 32.0f);
        }
        uint32_t mask[8];
        load_words(block, mask);
        load_words(block + 32 + index / 4 * 32, tile.codes);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            tile.codes[i] = (tile.codes[i] >> index % 4 * 2 & 0x03030303u) |
                            (mask[i] >> index & 0x01010101u) << 2;
        }
    }
};

struct IQ4_XS : Layout<136, 0, false, 8> {
    static __device__ __forceinline__ void unpack(const uint8_t *block, uint32_t index, Tile &tile) {
        uint32_t words[2];
        load_words(block, words);
        const uint32_t low = words[1] >> 4 * index & 15;
        const uint32_t high = words[0] >> (16 + 2 * index) & 3;
        tile.scale[0] = half_to_float((uint16_t)words[0]) * ((float)(low | high << 4) - 32.0f);
        UnevenSteps::look_up(block + 8 + 16 * index, tile.codes);
    }
};
