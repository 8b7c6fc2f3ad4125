// NVFP4: weights; see nvfp4.rs.
#pragma once
#include "mxfp4.cuh"

struct NVFP4 : Layout<36, 0, false, 2, 2> {
    /// Half the value of a UE4M3 number, since quants are doubled. Selects instead of branches: blocks of rows
    /// beyond the weight are unwritten.
    static __device__ __forceinline__ float half_scale(uint32_t scale) {
        const uint32_t exponent = scale >> 3 & 15, fraction = scale & 7;
        const float subnormal = (float)fraction * (1.0f / 1024.0f);
        const float normal = __uint_as_float((exponent + 119) << 23 | fraction << 20);
        const float value = exponent == 0 ? subnormal : normal;
        return scale == 0x7f ? 0.0f : value;
    }
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
#pragma unroll
        for (int half = 0; half < 2; half++) out.scale[half] = half_scale(block[2 * index + half]);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // Eight bytes for sixteen columns: the first eight columns are in the low nibbles.
            uint32_t nibbles[2];
            e2m1_values(word(block + 4 + 16 * index + 8 * i, t % 2), nibbles);
            out[i] = t < 2 ? nibbles[0] : nibbles[1];
        }
    }
};
