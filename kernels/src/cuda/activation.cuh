// What activations are to products with quantized weights, besides their codes: three numbers for every
// 32 of them. They lie as (rows, N_KIND, pitch) with zeros behind the last: so many numbers of one kind
// side by side are read at once.
#pragma once
#include "common.cuh"

/// The kinds: an element is SCALE times its code, NaN where one is no finite number; all codes add up to
/// SUM, the second half of them to SECOND_SUM.
constexpr uint32_t SCALE = 0, SUM = 1, SECOND_SUM = 2, N_KIND = 3;

/// Numbers that are read at once.
constexpr uint32_t QUAD = 4;

/// Numbers of a kind and row.
DEVICE uint32_t kind_pitch(uint32_t n_tile) { return (n_tile + QUAD - 1) / QUAD * QUAD; }
