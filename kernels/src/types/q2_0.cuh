// Q2_0: weights; see q2_0.rs.
#pragma once
#include "unpack.cuh"

struct Q2_0 : Layout<18, 1, false, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, Scales &out) {
        out.scale[0] = half_at(block, 0);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) out[i] = spread_pairs(block[2 + 8 * index + t + 4 * i]);
    }
};
