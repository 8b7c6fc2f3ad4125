// F16: weights and caches; see f16.rs.
#pragma once
#include "cache.cuh"

struct F16 {
    static constexpr bool IS_QUANTIZED = false;
    static constexpr uint32_t BYTES = 2;
    static __device__ __forceinline__ float at(const uint8_t *row, uint64_t i) {
        return half_to_float(load_u16(row + 2 * i));
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
