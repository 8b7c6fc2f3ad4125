// Activations quantized to signed bytes, the input of products with quantized weights, and three numbers for
// every 32 quants: scale and sums. The numbers are stored as (rows, N_KIND, pitch), padded with zeros, so that
// QUAD neighbouring numbers of one kind are read at once. Any kernel that computes activations can quantize
// them as well.
#pragma once
#include "common.cuh"

/// The kinds of numbers. SCALE: an element is the scale times its quant; NaN if an element is NaN or infinite.
/// SUM: the sum of the quants. SECOND_SUM: the sum of the second half of the quants.
constexpr uint32_t SCALE = 0, SUM = 1, SECOND_SUM = 2, N_KIND = 3;

/// Numbers that are read at once.
constexpr uint32_t QUAD = 4;

/// Numbers of one kind per row, with padding.
DEVICE uint32_t kind_pitch(uint32_t n_tile) { return (n_tile + QUAD - 1) / QUAD * QUAD; }

/// Addresses of the quants and their numbers; nothing is written if `quants` is null.
struct QuantizedInput {
    int8_t *quants;
    float *scales;
    /// Tiles per row.
    uint32_t n_tile;
    uint32_t unused;
};

/// Quantizes element `i`, which is `x`, to the nearest of 127 steps of the largest magnitude, ties to even. The
/// warp holds a whole tile.
DEVICE void store_quant(const QuantizedInput &quantized, uint64_t i, float x) {
    if (quantized.quants == nullptr) return;
    // Without the sign, the bits of floats have the order of the numbers, with NaN on top.
    uint32_t largest = __float_as_uint(x) & 0x7fffffffu;
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        largest = max_of(largest, __shfl_xor_sync(ALL_LANES, largest, half));
    }
    const uint32_t infinity = 0x7f800000u;
    const float magnitude = __uint_as_float(largest);
    const float scale = largest < infinity ? magnitude / 127.0f : __uint_as_float(0x7fc00000u);
    const float exact = 127.0f / magnitude;
    // The inverse of zero and of tiny numbers is infinite.
    const float inverse = (__float_as_uint(exact) & 0x7fffffffu) < infinity ? exact : 0.0f;
    // The sum has no bits for fractions; its low byte is the rounded integer.
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
    // Zeros the padding, which is copied with the rest.
    for (uint32_t beyond = tile + 1; tile + 1 == quantized.n_tile && beyond < pitch; beyond++) {
        scales++;
        for (uint32_t kind = 0; kind < N_KIND; kind++) scales[kind * pitch] = 0.0f;
    }
}
