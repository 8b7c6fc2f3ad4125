// TQ2_0: weights; see tq2_0.rs.
#pragma once
#include "unpack.cuh"

struct TQ2_0 : Layout<66, 1, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, Scales &out) {
        out.scale[0] = half_at(block, 64);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_four(block, 32), t + 4 * i);
            out[i] = low >> index % 4 * 2 & 0x03030303u;
        }
    }
};
