// Activations as quantized weights are multiplied with them: signed codes, and three numbers for every 32
// of them. These lie as (rows, N_KIND, pitch) with zeros behind the last: so many numbers of one kind side
// by side are read at once. Whatever kernel makes activations can make their codes, too.
#pragma once
#include "common.cuh"

/// The kinds: an element is SCALE times its code, NaN where one is no finite number; all codes add up to
/// SUM, the second half of them to SECOND_SUM.
constexpr uint32_t SCALE = 0, SUM = 1, SECOND_SUM = 2, N_KIND = 3;

/// Numbers that are read at once.
constexpr uint32_t QUAD = 4;

/// Numbers of a kind and row.
DEVICE uint32_t kind_pitch(uint32_t n_tile) { return (n_tile + QUAD - 1) / QUAD * QUAD; }

/// Where codes and their numbers go; nowhere if `codes` is null.
struct QuantizedInput {
    int8_t *quants;
    float *scales;
    /// Of a row.
    uint32_t n_tile;
    uint32_t unused;
};

/// Codes element `i`, which is `x`; the warp has a whole tile. To the nearest of 127 steps of the largest,
/// ties to even.
DEVICE void store_quant(const QuantizedInput &quantized, uint64_t i, float x) {
    if (quantized.quants == nullptr) return;
    // Without their sign the bits of numbers are in the order of the numbers, NaN on top.
    uint32_t largest = __float_as_uint(x) & 0x7fffffffu;
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        largest = max_of(largest, __shfl_xor_sync(ALL_LANES, largest, half));
    }
    const uint32_t infinity = 0x7f800000u;
    const float magnitude = __uint_as_float(largest);
    const float scale = largest < infinity ? magnitude / 127.0f : __uint_as_float(0x7fc00000u);
    const float exact = 127.0f / magnitude;
    // Zeros, and numbers too small to have an inverse.
    const float inverse = (__float_as_uint(exact) & 0x7fffffffu) < infinity ? exact : 0.0f;
    // Adding it leaves a number no bits for fractions; the low byte is the rounded integer.
    const int8_t quant = (int8_t)(uint8_t)__float_as_uint(x * inverse + 12582912.0f);
    quantized.quants[i] = quant;
    int32_t sum = quant;
#pragma unroll
    for (uint32_t half = LANES / 4; half > 0; half /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, half);
    }
    const int32_t second = __shfl_sync(ALL_LANES, sum, LANES / 2);
    if (lane() != 0) return;
    const uint32_t pitch = kind_pitch(quantized.n_tile);
    const uint32_t row = (uint32_t)(i / LANES) / quantized.n_tile;
    const uint32_t tile = (uint32_t)(i / LANES) % quantized.n_tile;
    float *scales = quantized.scales + (uint64_t)row * N_KIND * pitch + tile;
    scales[SCALE * pitch] = scale;
    scales[SUM * pitch] = (float)(sum + second);
    scales[SECOND_SUM * pitch] = (float)second;
    // Nobody reads what is behind the last; but it is copied.
    for (uint32_t beyond = tile + 1; tile + 1 == quantized.n_tile && beyond < pitch; beyond++) {
        scales++;
        for (uint32_t kind = 0; kind < N_KIND; kind++) scales[kind * pitch] = 0.0f;
    }
}
