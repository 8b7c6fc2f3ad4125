// IQ4_NL: weights; see iq4_nl.rs.
#pragma once
#include "unpack.cuh"

/// Nibbles as -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
DEVICE void uneven_steps(uint32_t word, uint32_t (&quants)[2]) {
    const uint32_t table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    values(word, table, quants);
}

struct IQ4_NL : Scaled<18> {
    static __device__ __forceinline__ void quants(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        uneven_steps(word(block + 2, t), out);
    }
};
