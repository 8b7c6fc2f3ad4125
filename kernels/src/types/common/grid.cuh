// Quants on grids; see grid.rs. A point has the quants of a group, the first in the lowest bits.
#pragma once
#include "unpack.cuh"

/// Selectors of `__byte_perm`: the four pairs of bits of a byte.
DEVICE uint32_t pairs(uint32_t byte) {
    return (byte & 3) | (byte & 0xc) << 2 | (byte & 0x30) << 4 | (byte & 0xc0) << 6;
}

/// Selectors: the four groups of three bits.
DEVICE uint32_t triples(uint32_t point) {
    return (point & 7) | (point & 0x38) << 1 | (point & 0x1c0) << 2 | (point & 0xe00) << 3;
}

/// Adds 4 to the selectors whose bit is set.
DEVICE uint32_t signs_of_selectors(uint32_t signs) {
    return (signs & 1) << 2 | (signs & 2) << 5 | (signs & 4) << 8 | (signs & 8) << 11;
}

/// The eight signs of a code of seven bits: their number is even.
DEVICE uint32_t with_parity(uint32_t code) {
    return (code & 127) | (__popc(code & 127) & 1) << 7;
}

/// Half of a group of eight quants with the magnitudes 8, 25 and 43.
DEVICE uint32_t half_of_eight(uint32_t point, uint32_t signs, uint32_t half) {
    const uint32_t selectors = pairs(point >> 8 * half & 0xff) | signs_of_selectors(signs >> 4 * half & 15);
    return __byte_perm(0x002b1908u, 0x00d5e7f8u, selectors);
}

/// Half of a group of eight ternary quants, eight times their value, moved up or down by 1.
DEVICE uint32_t half_of_ternary(uint32_t point, uint32_t is_down, uint32_t half) {
    return __byte_perm(0x000901f9u, 0x0007fff7u, pairs(point >> 8 * half & 0xff) | is_down * 0x4444u);
}

/// A group of four quants: their magnitudes, negative where the bit of `signs` is set.
DEVICE uint32_t group_of_four(uint32_t point, uint32_t signs, uint32_t low, uint32_t high) {
    const uint32_t magnitudes = __byte_perm(low, high, triples(point));
    const uint32_t is_minus = spread_bits(signs, 0);
    // No magnitude is 0, so that bytes do not carry.
    return (magnitudes ^ is_minus * 0xffu) + is_minus;
}
