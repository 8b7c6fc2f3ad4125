// Q5_1: weights; see q5_1.rs.
#pragma once
#include "unpack.cuh"

struct Q5_1 : Affine<24> {
    static __device__ __forceinline__ void quants(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 8, t), out);
        add_fifth_bits(word(block + 4, 0), t, out);
    }
};
