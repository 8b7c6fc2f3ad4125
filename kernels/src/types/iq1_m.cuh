// IQ1_M: weights; see iq1_m.rs.
#pragma once
#include "grid.cuh"
#include "points_iq1.cuh"

struct IQ1_M : Layout<56, 0, false, 8, 2> {
    static __device__ __forceinline__ void scales(const uint8_t *block, uint32_t index, Scales &out) {
        const uint32_t low = word(block + 48, 0), high = word(block + 48, 1);
        const uint32_t d = (low >> 12 & 0xf) | (low >> 24 & 0xf0) | (high >> 4 & 0xf00) | (high >> 16 & 0xf000);
        const uint32_t four = load_u16(block + 48 + index / 2 * 2) >> index % 2 * 6;
#pragma unroll
        for (int half = 0; half < 2; half++)
            out.scale[half] = half_to_float((uint16_t)d) * 0.25f * ((float)(four >> 3 * half & 7) + 0.5f);
    }
    static __device__ __forceinline__ void quants(const uint8_t *block, TileIndex index, uint32_t t,
                                                 uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t group = 4 * index + t / 2 + 2 * i;
            const uint32_t high = block[32 + group / 2] >> group % 2 * 4 & 15;
            const uint32_t point = block[group] | (high & 7) << 8;
            out[i] = half_of_ternary(POINTS_IQ1[point], high >> 3, t % 2);
        }
    }
};
