// IQ2_S: weights; see iq2_s.rs.
#pragma once
#include "grid.cuh"
#include "points_iq2_s.cuh"

struct IQ2_S : Layout<82, 0, false, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 0) * 0.25f;
        const uint32_t both = block[74 + index];
        out.scale[0] = d * ((float)(both & 15) + 0.5f);
        out.scale[1] = d * ((float)(both >> 4) + 0.5f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t group = t / 2 + 2 * i, at = 4 * index + group;
            const uint32_t point = block[2 + at] | (block[66 + index] >> 2 * group & 3) << 8;
            out[i] = half_of_eight(POINTS_IQ2_S[point], block[34 + at], t % 2);
        }
    }
};
