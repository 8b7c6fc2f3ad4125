// Q1_0: weights; see q1_0.rs.
#pragma once
#include "unpack.cuh"

struct Q1_0 : Layout<18, 1, false, 4> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, Scales &out) {
        out.scale[0] = half_at(block, 0);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
        const uint32_t bits = word(block + 2, index);
#pragma unroll
        for (int i = 0; i < 2; i++) out[i] = spread_bits(bits, t + 4 * i) << 1;
    }
};
