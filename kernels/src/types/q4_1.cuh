// Q4_1: weights; see q4_1.rs.
#pragma once
#include "unpack.cuh"

struct Q4_1 : Affine<20> {
    static __device__ __forceinline__ void quants(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 4, t), out);
    }
};
