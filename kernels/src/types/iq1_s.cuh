// IQ1_S: weights; see iq1_s.rs.
#pragma once
#include "grid.cuh"
#include "points_iq1.cuh"

struct IQ1_S : Layout<50, 0, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const uint32_t high = load_u16(block + 34 + 2 * index);
        out.scale[0] = half_at(block, 0) * 0.25f * ((float)(high >> 12 & 7) + 0.5f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t group = t / 2 + 2 * i, high = load_u16(block + 34 + 2 * index);
            const uint32_t point = block[2 + 4 * index + group] | (high >> 3 * group & 7) << 8;
            out[i] = half_of_ternary(POINTS_IQ1[point], high >> 15, t % 2);
        }
    }
};
