// Q2_K: weights; see q2_k.rs.
#pragma once
#include "unpack.cuh"

struct Q2_K : Layout<84, 0, true, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 80), minus_dmin = -half_at(block, 82);
        const uint32_t both = load_u16(block + 2 * index);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out.scale[half] = d * (float)(both >> 8 * half & 15);
            out.minus_min[half] = minus_dmin * (float)(both >> (8 * half + 4) & 15);
        }
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_four(block + 16, 32), t + 4 * i);
            out[i] = low >> index % 4 * 2 & 0x03030303u;
        }
    }
};
