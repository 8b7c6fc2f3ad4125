// Q4_K: weights; see q4_k.rs.
#pragma once
#include "superblock.cuh"

struct Q4_K : AffineTiles<144> {
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = word(index.of_pair(block + 16, 32), t + 4 * i);
            out[i] = low >> index.more % 2 * 4 & 0x0f0f0f0fu;
        }
    }
};
