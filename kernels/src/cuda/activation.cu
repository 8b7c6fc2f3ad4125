// Activations as signed codes: what quantized weights are multiplied with.
#include "activation.cuh"

constexpr uint32_t WARPS = 8;

struct Quantize {
    const float *x;
    int8_t *codes;
    float *scales;
    /// Of a row.
    uint32_t n_tile;
    uint32_t n;
};

/// One warp quantizes 32 elements: to the nearest of 127 steps of the largest, ties to even.
KERNEL(quantize, WARPS * LANES, Quantize) {
    const uint32_t pitch = kind_pitch(args.n_tile);
    const uint32_t index = blockIdx.x * WARPS + warp();
    const uint32_t row = index / pitch, tile = index % pitch;
    if (row >= args.n) return;
    float *scales = args.scales + (uint64_t)row * N_KIND * pitch + tile;
    if (tile >= args.n_tile) {
        if (lane() < N_KIND) scales[lane() * pitch] = 0.0f;
        return;
    }
    const uint64_t at = ((uint64_t)row * args.n_tile + tile) * LANES + lane();
    const float x = args.x[at];
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
    const int8_t code = (int8_t)(uint8_t)__float_as_uint(x * inverse + 12582912.0f);
    args.codes[at] = code;
    int32_t sum = code;
#pragma unroll
    for (uint32_t half = LANES / 4; half > 0; half /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, half);
    }
    const int32_t second = __shfl_sync(ALL_LANES, sum, LANES / 2);
    if (lane() == 0) {
        scales[SCALE * pitch] = scale;
        scales[SUM * pitch] = (float)(sum + second);
        scales[SECOND_SUM * pitch] = (float)second;
    }
}
