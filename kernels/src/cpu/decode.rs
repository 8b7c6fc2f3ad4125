//! 16-bit floats to `f32`.

use super::simd::{LANES, Simd};

#[inline(always)]
pub(super) fn f16<S: Simd>(simd: S, halves: &[[u8; 2]; LANES], out: &mut [f32; LANES]) {
    for i in 0..S::REGISTERS {
        simd.store(simd.load_f16(halves, i), out, i);
    }
}

#[inline(always)]
pub(super) fn bf16<S: Simd>(simd: S, halves: &[[u8; 2]; LANES], out: &mut [f32; LANES]) {
    for i in 0..S::REGISTERS {
        simd.store(simd.load_bf16(halves, i), out, i);
    }
}
