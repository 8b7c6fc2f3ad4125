// Q6_K: weights; see q6_k.rs.
#pragma once
#include "unpack.cuh"

struct Q6_K : Layout<210, 32, false, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 208);
        const uint32_t both = load_u16(block + 192 + 2 * index);
        out.scale[0] = d * (float)(int8_t)both;
        out.scale[1] = d * (float)(int8_t)(both >> 8);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_four(block, 64) + index.more % 2 * 32, t + 4 * i);
            const uint32_t high = word(index.of_four(block + 128, 32), t + 4 * i);
            const uint32_t low_shift = (index.first / 2 + index.more / 2) % 2 * 4;
            out[i] = (low >> low_shift & 0x0f0f0f0fu) | (high >> index % 4 * 2 & 0x03030303u) << 4;
        }
    }
};
