// Q8_0: weights and caches; see q8_0.rs.
#pragma once
#include "cache.cuh"
#include "unpack.cuh"

struct Q8_0 : Scaled<34> {
    static __device__ __forceinline__ void quants(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        out[0] = word(block + 2, t);
        out[1] = word(block + 2, t + 4);
    }
};

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
        // Ties away from zero: adding the largest number below a half carries a fraction of a half to the next
        // integer.
        const float steps = x * inverse;
        const float moved = steps + (steps < 0.0f ? -0.49999997f : 0.49999997f);
        const bool fits = (__float_as_uint(moved) & 0x7fffffffu) < 0x4f000000u;
        chunk[2 + lane()] = (uint8_t)(fits ? (int32_t)moved : 0);
        // Quants cannot represent NaN or infinity: the scale becomes NaN.
        if (lane() == 0) {
            const uint16_t half = largest < 0x7f800000u ? float_to_half(scale) : (uint16_t)0xffffu;
            *reinterpret_cast<uint16_t *>(chunk) = half;
        }
    }
};
