// Keys and values of tokens, in the element type of a cache: the layout of
// `kernels/src/cpu/cache.rs`. All rows of a head lie together; heads are padded with zeros to whole
// chunks of 32 elements. Elements of every type become numbers without rounding.
#pragma once
#include "common.cuh"

/// Half precision, rounded to nearest, ties to even.
DEVICE uint16_t float_to_half(float x) {
    const uint32_t bits = __float_as_uint(x);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the result counts units of 2^-24, which is the last place of 0.5.
    const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude < 0x477ff000u ? half : 0x7c00u;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(sign | half);
}

/// The upper half of single precision, rounded to nearest, ties to even.
DEVICE uint16_t float_to_bfloat(float x) {
    const uint32_t bits = __float_as_uint(x);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

/// Cells of a type: the bytes of a chunk of 32 elements, how to read one or eight of them, and how a
/// warp, each lane with its element, writes a chunk.
struct CellsF32 {
    static constexpr uint32_t CHUNK = 128;
    static __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t part, float (&x)[8]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t words[4];
            load_quad(chunk + 32 * part + 16 * i, words);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) x[4 * i + j] = __uint_as_float(words[j]);
        }
    }
    static __device__ __forceinline__ float at(const uint8_t *chunk, uint32_t i) {
        return reinterpret_cast<const float *>(chunk)[i];
    }
    static __device__ __forceinline__ void store(uint8_t *chunk, float x) {
        reinterpret_cast<float *>(chunk)[lane()] = x;
    }
};

struct CellsF16 {
    static constexpr uint32_t CHUNK = 64;
    static __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t part, float (&x)[8]) {
        uint32_t words[4];
        load_quad(chunk + 16 * part, words);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            x[2 * j] = half_to_float((uint16_t)words[j]);
            x[2 * j + 1] = half_to_float((uint16_t)(words[j] >> 16));
        }
    }
    static __device__ __forceinline__ float at(const uint8_t *chunk, uint32_t i) {
        return half_to_float(load_u16(chunk + 2 * i));
    }
    static __device__ __forceinline__ void store(uint8_t *chunk, float x) {
        reinterpret_cast<uint16_t *>(chunk)[lane()] = float_to_half(x);
    }
};

struct CellsBF16 {
    static constexpr uint32_t CHUNK = 64;
    static __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t part, float (&x)[8]) {
        uint32_t words[4];
        load_quad(chunk + 16 * part, words);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            x[2 * j] = __uint_as_float(words[j] << 16);
            x[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        }
    }
    static __device__ __forceinline__ float at(const uint8_t *chunk, uint32_t i) {
        return bfloat_to_float(load_u16(chunk + 2 * i));
    }
    static __device__ __forceinline__ void store(uint8_t *chunk, float x) {
        reinterpret_cast<uint16_t *>(chunk)[lane()] = float_to_bfloat(x);
    }
};

/// Codes of a byte, behind a scale in half precision.
struct CellsQ8_0 {
    static constexpr uint32_t CHUNK = 34;
    static __device__ __forceinline__ void load(const uint8_t *chunk, uint32_t part, float (&x)[8]) {
        const float scale = half_to_float(load_u16(chunk));
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t word = load_word<2>(chunk + 2 + 8 * part + 4 * i);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) x[4 * i + j] = scale * (float)(int8_t)(word >> 8 * j);
        }
    }
    static __device__ __forceinline__ float at(const uint8_t *chunk, uint32_t i) {
        return half_to_float(load_u16(chunk)) * (float)(int8_t)chunk[2 + i];
    }
    static __device__ __forceinline__ void store(uint8_t *chunk, float x) {
        const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
        uint32_t largest = magnitude;
#pragma unroll
        for (uint32_t half = LANES / 2; half > 0; half /= 2) {
            largest = max_of(largest, __shfl_xor_sync(ALL_LANES, largest, half));
        }
        const float scale = __uint_as_float(largest) / 127.0f;
        const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
        // Ties away from zero: the largest number below a half reaches the next integer there.
        const float steps = x * inverse;
        const float moved = steps + (steps < 0.0f ? -0.49999997f : 0.49999997f);
        const bool fits = (__float_as_uint(moved) & 0x7fffffffu) < 0x4f000000u;
        chunk[2 + lane()] = (uint8_t)(fits ? (int32_t)moved : 0);
        // Codes cannot say that an element is no finite number: a NaN for a scale does.
        if (lane() == 0) {
            const uint16_t half = largest < 0x7f800000u ? float_to_half(scale) : (uint16_t)0xffffu;
            *reinterpret_cast<uint16_t *>(chunk) = half;
        }
    }
};

/// The chunks of one head of a row.
template <class Cells>
DEVICE uint64_t head_offset(uint32_t head, uint32_t row, uint32_t n_rows, uint32_t head_dim) {
    const uint32_t head_bytes = (head_dim + LANES - 1) / LANES * Cells::CHUNK;
    return ((uint64_t)head * n_rows + row) * head_bytes;
}
