// IQ3_S: weights; see iq3_s.rs.
#pragma once
#include "grid.cuh"
#include "points_iq3_s.cuh"

struct IQ3_S : Layout<110, 0, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const uint32_t quant = block[106 + index / 2] >> index % 2 * 4 & 15;
        out.scale[0] = half_at(block, 0) * 2.0f * ((float)quant + 0.5f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t at = t + 4 * i;
            const uint32_t point = block[2 + 8 * index + at] | (block[66 + index] >> at & 1) << 8;
            const uint32_t signs = block[74 + 4 * index + at / 2] >> at % 2 * 4 & 15;
            out[i] = group_of_four(POINTS_IQ3_S[point], signs, 0x07050301u, 0x0f0d0b09u);
        }
    }
};
