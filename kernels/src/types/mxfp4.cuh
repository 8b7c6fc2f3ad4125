// MXFP4: weights; see mxfp4.rs.
#pragma once
#include "unpack.cuh"

/// Nibbles as 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
DEVICE void e2m1_values(uint32_t word, uint32_t (&quants)[2]) {
    const uint32_t table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
    values(word, table, quants);
}

struct MXFP4 : Layout<17, 0, false> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, Scales &out) {
        // Quants are doubled, so the scale is halved.
        const uint32_t e = block[0];
        out.scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, uint32_t, uint32_t t,
                                                 uint32_t (&out)[2]) {
        e2m1_values(word(block + 1, t), out);
    }
};
