// Q5_0: weights; see q5_0.rs.
#pragma once
#include "unpack.cuh"

struct Q5_0 : Scaled<22, 16> {
    static __device__ __forceinline__ void quants(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        nibbles(word(block + 6, t), out);
        add_fifth_bits(word(block + 2, 0), t, out);
    }
};
