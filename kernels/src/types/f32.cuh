// F32: weights and caches; see f32.rs.
#pragma once
#include "cache.cuh"

struct F32 {
    static constexpr bool IS_QUANTIZED = false;
    static constexpr uint32_t BYTES = 4;
    static __device__ __forceinline__ float at(const uint8_t *row, uint64_t i) {
        return reinterpret_cast<const float *>(row)[i];
    }
};

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
