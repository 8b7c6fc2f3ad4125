// IQ4_XS: weights; see iq4_xs.rs.
#pragma once
#include "iq4_nl.cuh"

struct IQ4_XS : Layout<136, 0, false, 8> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const uint32_t first = word(block, 0);
        const uint32_t low = word(block + 4, 0) >> 4 * index & 15;
        const uint32_t high = first >> (16 + 2 * index) & 3;
        out.scale[0] = half_to_float((uint16_t)first) * ((float)(low | high << 4) - 32.0f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
        uneven_steps(word(block + 8 + 16 * index, t), out);
    }
};
