// IQ2_XS: weights; see iq2_xs.rs.
#pragma once
#include "grid.cuh"
#include "points_iq2_xs.cuh"

struct IQ2_XS : Layout<74, 0, false, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 0) * 0.25f;
        const uint32_t both = block[66 + index];
        out.scale[0] = d * ((float)(both & 15) + 0.5f);
        out.scale[1] = d * ((float)(both >> 4) + 0.5f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t both = load_u16(block + 2 + 8 * index + 2 * (t / 2 + 2 * i));
            out[i] = half_of_eight(POINTS_IQ2_XS[both & 511], with_parity(both >> 9), t % 2);
        }
    }
};
