// Caches: all rows of a head are contiguous, and heads are padded with zeros to whole chunks of 32 elements, as
// in `kernels/src/ops/cache/cpu.rs`. Decoding an element never rounds.
//
// A type has a struct `Cells` and its name: CHUNK is the size of a chunk in bytes, `load` reads eight elements of
// it, `at` one, and `store` writes one element per lane of a warp.
#pragma once
#include "common.cuh"

/// Converts to half precision, rounded to nearest, ties to even.
DEVICE uint16_t float_to_half(float x) {
    const uint32_t bits = __float_as_uint(x);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the result counts units of 2^-24, which is the last place of 0.5.
    const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude < 0x477ff000u ? half : 0x7c00u;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(sign | half);
}

/// Converts to bfloat16, rounded to nearest, ties to even.
DEVICE uint16_t float_to_bfloat(float x) {
    const uint32_t bits = __float_as_uint(x);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

/// The offset of a head of a row, in bytes.
template <class Cells>
DEVICE uint64_t head_offset(uint32_t head, uint32_t row, uint32_t n_rows, uint32_t head_dim) {
    const uint32_t head_bytes = (head_dim + LANES - 1) / LANES * Cells::CHUNK;
    return ((uint64_t)head * n_rows + row) * head_bytes;
}
