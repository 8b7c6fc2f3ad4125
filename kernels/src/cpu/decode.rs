//! Blocks to numbers, for the types that models mostly come in.
//!
//! Each formula is that of the type's codec in [`crate::quant`], bit for bit.

use super::simd::{LANES, Simd};
use crate::quant::affine::Scales;
use crate::quant::q4_k::Q4_K;
use crate::quant::q5_k::Q5_K;
use crate::quant::q6_k::Q6_K;
use crate::quant::q8_0::Q8_0;

/// The elements of one K-quant superblock, by sub-block.
type Superblock = [[f32; LANES]; 8];

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

#[inline(always)]
pub(super) fn q8_0<S: Simd>(simd: S, block: &Q8_0, out: &mut [f32; LANES]) {
    let d = simd.splat(block.d.to_f32());
    for i in 0..S::REGISTERS {
        let codes = simd.to_f32(simd.load_i8(&block.qs, i));
        simd.store(simd.mul(d, codes), out, i);
    }
}

/// Scale and minimum of each sub-block, in the first eight places.
#[inline(always)]
fn scales_and_mins<S: Simd>(simd: S, scales: &Scales) -> ([f32; LANES], [f32; LANES]) {
    let (scale_codes, min_codes) = scales.all_codes();
    let values = |factor: f32, codes: [u8; 8]| {
        let mut chunk = [0; LANES];
        chunk[..8].copy_from_slice(&codes);
        let mut values = [0.0; LANES];
        // The narrowest register has eight lanes.
        let codes = simd.to_f32(simd.load_u8(&chunk, 0));
        simd.store(simd.mul(simd.splat(factor), codes), &mut values, 0);
        values
    };
    (
        values(scales.d.to_f32(), scale_codes),
        values(scales.dmin.to_f32(), min_codes),
    )
}

#[inline(always)]
pub(super) fn q4_k<S: Simd>(simd: S, block: &Q4_K, out: &mut Superblock) {
    let (scales, mins) = scales_and_mins(simd, &block.scales);
    for (p, [even, odd]) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let [scale_even, scale_odd] = [2 * p, 2 * p + 1].map(|j| simd.splat(scales[j]));
        let [min_even, min_odd] = [2 * p, 2 * p + 1].map(|j| simd.splat(mins[j]));
        for i in 0..S::REGISTERS {
            let codes = simd.load_u8(&block.qs[p], i);
            let low = simd.to_f32(simd.bits(codes, 0, 4));
            let high = simd.to_f32(simd.bits(codes, 4, 4));
            simd.store(simd.sub(simd.mul(scale_even, low), min_even), even, i);
            simd.store(simd.sub(simd.mul(scale_odd, high), min_odd), odd, i);
        }
    }
}

#[inline(always)]
pub(super) fn q5_k<S: Simd>(simd: S, block: &Q5_K, out: &mut Superblock) {
    let (scales, mins) = scales_and_mins(simd, &block.scales);
    for (p, [even, odd]) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let [scale_even, scale_odd] = [2 * p, 2 * p + 1].map(|j| simd.splat(scales[j]));
        let [min_even, min_odd] = [2 * p, 2 * p + 1].map(|j| simd.splat(mins[j]));
        for i in 0..S::REGISTERS {
            let codes = simd.load_u8(&block.qs[p], i);
            let high = simd.load_u8(&block.qh, i);
            let [high_even, high_odd] = [2 * p, 2 * p + 1].map(|j| simd.bits(high, j as u32, 1));
            let low = simd.to_f32(simd.join(high_even, 4, simd.bits(codes, 0, 4)));
            let high = simd.to_f32(simd.join(high_odd, 4, simd.bits(codes, 4, 4)));
            simd.store(simd.sub(simd.mul(scale_even, low), min_even), even, i);
            simd.store(simd.sub(simd.mul(scale_odd, high), min_odd), odd, i);
        }
    }
}

#[inline(always)]
pub(super) fn q6_k<S: Simd>(simd: S, block: &Q6_K, out: &mut Superblock) {
    let mut chunk = [0; LANES];
    chunk[..16].copy_from_slice(&block.scales);
    let mut scales = [0.0; LANES];
    for i in 0..S::REGISTERS / 2 {
        let codes = simd.to_f32(simd.load_i8(&chunk, i));
        simd.store(
            simd.mul(simd.splat(block.d.to_f32()), codes),
            &mut scales,
            i,
        );
    }
    let (low, high) = (
        block.ql.as_chunks().0.as_chunks::<2>().0,
        block.qh.as_chunks().0,
    );
    for (half, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        for i in 0..S::REGISTERS {
            let [a, b] = [0, 1].map(|k| simd.load_u8(&low[half][k], i));
            let high = simd.load_u8(&high[half], i);
            for (quarter, out) in out.iter_mut().enumerate() {
                let low = simd.bits([a, b][quarter % 2], 4 * (quarter as u32 / 2), 4);
                let high = simd.bits(high, 2 * quarter as u32, 2);
                let codes = simd.to_f32(simd.join(high, 4, low));
                // A scale for each 16 lanes.
                let scale = simd.splat(scales[8 * half + 2 * quarter + 2 * i / S::REGISTERS]);
                simd.store(simd.mul(scale, simd.sub(codes, simd.splat(32.0))), out, i);
            }
        }
    }
}
