// TQ1_0: weights; see tq1_0.rs.
#pragma once
#include "unpack.cuh"

struct TQ1_0 : Layout<54, 1, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t, Scales &out) {
        out.scale[0] = half_at(block, 52);
    }

    /// Digit `n` of each byte of a word.
    static __device__ __forceinline__ uint32_t digits(uint32_t word, uint32_t n) {
        const uint32_t power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
        const uint32_t even = ((word & 0x00ff00ffu) * power & 0x00ff00ffu) * 3;
        const uint32_t odd = ((word >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu) * 3;
        return (even >> 8 & 0x00030003u) | (odd & 0x03000300u);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            // Five digits of 32 bytes, then five digits of 16 bytes, then four digits of four bytes.
            const uint32_t half = 2 * index + i;
            if (half < 10) {
                out[i] = digits(word(block, t + 4 * i), index);
            } else if (half < 15) {
                out[i] = digits(word(block + 32, t), half - 10);
            } else {
                out[i] = digits(word(block + 48, 0), t);
            }
        }
    }
};
