//! NEON: four lanes.

use std::arch::aarch64::*;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Sub};

use crate::float::MAGIC;
use crate::simd::lanes::{Lanes, gather_columns};
use crate::simd::lanes_macros::{call, compiled_for, lanes_of, operators};
use crate::simd::steps::Steps;

/// The operations of [`F32x4`].
mod vector {
    use super::*;

    compiled_for! { "neon":
        pub(super) fn splat(x: f32) -> float32x4_t { vdupq_n_f32(x) }
        pub(super) fn load(x: &[f32]) -> float32x4_t {
            assert!(x.len() >= 4);
            // SAFETY: the array has four elements.
            unsafe { vld1q_f32(x.as_ptr()) }
        }
        pub(super) fn store(x: float32x4_t, out: &mut [f32]) {
            assert!(out.len() >= 4);
            // SAFETY: the array has four elements.
            unsafe { vst1q_f32(out.as_mut_ptr(), x) }
        }
        pub(super) fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        pub(super) fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
        pub(super) fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        pub(super) fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
        pub(super) fn abs(x: float32x4_t) -> float32x4_t { vabsq_f32(x) }
        pub(super) fn sqrt(x: float32x4_t) -> float32x4_t { vsqrtq_f32(x) }
        // The CPU's maximum and minimum instructions treat NaN and zeros differently.
        pub(super) fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            select(gt(a, b), a, b)
        }
        pub(super) fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            select(gt(b, a), a, b)
        }
        pub(super) fn gt(a: float32x4_t, b: float32x4_t) -> uint32x4_t { vcgtq_f32(a, b) }
        pub(super) fn eq(a: float32x4_t, b: float32x4_t) -> uint32x4_t { vceqq_f32(a, b) }
        pub(super) fn ne(a: float32x4_t, b: float32x4_t) -> uint32x4_t {
            vmvnq_u32(vceqq_f32(a, b))
        }
        pub(super) fn both(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t { vandq_u32(a, b) }
        pub(super) fn either(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t { vorrq_u32(a, b) }
        pub(super) fn select(mask: uint32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
            vbslq_f32(mask, yes, no)
        }
        pub(super) fn largest(x: float32x4_t) -> f32 { vmaxvq_f32(x) }
        pub(super) fn away_from_zero(x: float32x4_t, by: f32) -> float32x4_t {
            let by = vbslq_f32(vdupq_n_u32(1 << 31), x, vdupq_n_f32(by));
            vaddq_f32(x, by)
        }
        pub(super) fn bits(mask: uint32x4_t) -> u64 {
            let places = [1u32, 2, 4, 8];
            // SAFETY: the array has four elements.
            let places = unsafe { vld1q_u32(places.as_ptr()) };
            u64::from(vaddvq_u32(vandq_u32(mask, places)))
        }
        pub(super) fn round_to_quant(x: float32x4_t, min: i32, max: i32) -> float32x4_t {
            let bits = vreinterpretq_s32_f32(vaddq_f32(x, vdupq_n_f32(MAGIC)));
            let bits = vandq_s32(bits, vdupq_n_s32(0x007f_ffff));
            let quant = vsubq_s32(bits, vdupq_n_s32(0x0040_0000));
            let quant = vmaxq_s32(quant, vdupq_n_s32(min));
            vcvtq_f32_s32(vminq_s32(quant, vdupq_n_s32(max)))
        }
        pub(super) fn from_quants(quants: &[u8]) -> float32x4_t {
            let quants = [quants[0], quants[1], quants[2], quants[3]].map(f32::from);
            load(&quants)
        }
        pub(super) fn truncate_to_bytes(x: float32x4_t, out: &mut [u8]) {
            // This conversion saturates. Numbers that do not fit become 0, which has the same low byte as
            // the i32::MIN that `truncate` returns.
            let limit = vdupq_n_f32(-(i32::MIN as f32));
            let fitting = select(vcltq_f32(vabsq_f32(x), limit), x, vdupq_n_f32(0.0));
            let mut numbers = [0; 4];
            // SAFETY: the array has four elements.
            unsafe { vst1q_s32(numbers.as_mut_ptr(), vcvtq_s32_f32(fitting)) }
            for (out, number) in out[..4].iter_mut().zip(numbers) {
                *out = number as u8;
            }
        }
        /// Compares with one midpoint after another.
        pub(super) fn nearest(x: float32x4_t, steps: &Steps) -> float32x4_t {
            let mut value = vdupq_n_f32(steps.values[15]);
            for i in (0..15).rev() {
                let below = vcltq_f32(x, vdupq_n_f32(steps.middles[i]));
                value = select(below, vdupq_n_f32(steps.values[i]), value);
            }
            value
        }
        pub(super) fn look_up(entries: &[f32; 16], quants: &[u8]) -> float32x4_t {
            let mut numbers = [0.0; 4];
            for (number, &quant) in numbers.iter_mut().zip(&quants[..4]) {
                *number = entries[usize::from(quant & 15)];
            }
            load(&numbers)
        }
    }

    /// Size of the square tiles that are transposed at once.
    const TILE: usize = 4;

    #[target_feature(enable = "neon")]
    #[inline]
    pub(super) fn columns(x: &[f32], stride: usize, out: &mut [super::F32x4]) {
        let (tiles, rest) = out.as_chunks_mut::<TILE>();
        let n_tiles = tiles.len();
        for (t, tile) in tiles.iter_mut().enumerate() {
            let mut rows = [vdupq_n_f32(0.0); TILE];
            for (k, row) in rows.iter_mut().enumerate() {
                *row = load(&x[k * stride + TILE * t..]);
            }
            let [a, b, c, d] = rows;
            let even = [vtrn1q_f32(a, b), vtrn1q_f32(c, d)].map(|x| vreinterpretq_f64_f32(x));
            let odd = [vtrn2q_f32(a, b), vtrn2q_f32(c, d)].map(|x| vreinterpretq_f64_f32(x));
            tile[0].0 = vreinterpretq_f32_f64(vtrn1q_f64(even[0], even[1]));
            tile[1].0 = vreinterpretq_f32_f64(vtrn1q_f64(odd[0], odd[1]));
            tile[2].0 = vreinterpretq_f32_f64(vtrn2q_f64(even[0], even[1]));
            tile[3].0 = vreinterpretq_f32_f64(vtrn2q_f64(odd[0], odd[1]));
        }
        gather_columns(x, stride, TILE * n_tiles, rest);
    }
}

lanes_of! { F32x4(float32x4_t) of 4, Mask4(uint32x4_t) from vector }
