// Q3_K: weights; see q3_k.rs.
#pragma once
#include "unpack.cuh"

struct Q3_K : Layout<110, 4, false, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const float d = half_at(block, 108);
        // Sixteen scales: the low nibbles of eight bytes, then their high nibbles, and two more bits in four bytes.
        // The two scales of a tile are adjacent in both.
        const uint32_t j = 2 * index;
        const uint32_t low = (uint32_t)load_u16(block + 96 + j % 8) >> j / 8 * 4;
        const uint32_t high = (uint32_t)load_u16(block + 104 + j % 4) >> j / 4 * 2;
        const uint32_t both = (low & 0x0f0fu) | (high & 0x0303u) << 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out.scale[half] = d * ((float)(both >> 8 * half & 63) - 32.0f);
        }
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_four(block + 32, 32), t + 4 * i);
            const uint32_t high = word(block, t + 4 * i);
            out[i] = (low >> index % 4 * 2 & 0x03030303u) | (high >> index & 0x01010101u) << 2;
        }
    }
};
