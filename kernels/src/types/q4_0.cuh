// Q4_0: weights; see q4_0.rs.
#pragma once
#include "unpack.cuh"

struct Q4_0 : Scaled<18, 8> {
    static __device__ __forceinline__ void quants(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 2, t), out);
    }
};
