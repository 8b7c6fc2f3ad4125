// IQ2_XXS: weights; see iq2_xxs.rs.
#pragma once
#include "grid.cuh"
#include "points_iq2_xxs.cuh"

struct IQ2_XXS : Layout<66, 0, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const uint32_t codes = word(block + 2 + 8 * index, 1);
        out.scale[0] = half_at(block, 0) * 0.25f * ((float)(codes >> 28) + 0.5f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t group = t / 2 + 2 * i, codes = word(block + 2 + 8 * index, 1);
            const uint32_t point = POINTS_IQ2_XXS[block[2 + 8 * index + group]];
            out[i] = half_of_eight(point, with_parity(codes >> 7 * group), t % 2);
        }
    }
};
