// IQ3_XXS: weights; see iq3_xxs.rs.
#pragma once
#include "grid.cuh"
#include "points_iq3_xxs.cuh"

struct IQ3_XXS : Layout<98, 0, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const uint32_t codes = word(block + 66 + 4 * index, 0);
        out.scale[0] = half_at(block, 0) * 0.5f * ((float)(codes >> 28) + 0.5f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t group = t / 2 + 2 * i, codes = word(block + 66 + 4 * index, 0);
            const uint32_t point = POINTS_IQ3_XXS[block[2 + 8 * index + t + 4 * i]];
            const uint32_t signs = with_parity(codes >> 7 * group) >> t % 2 * 4 & 15;
            out[i] = group_of_four(point, signs, 0x1c140c04u, 0x3e342c24u);
        }
    }
};
