//! Portable Rust: one lane.

use crate::float::{nearest_int, truncate};
use crate::simd::lanes::Lanes;
use crate::simd::steps::Steps;

/// A single lane: the specification of the others.
impl Lanes for f32 {
    const N: usize = 1;

    type Mask = bool;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn load(x: &[f32]) -> Self {
        x[0]
    }

    #[inline(always)]
    fn store(self, out: &mut [f32]) {
        out[0] = self;
    }

    #[inline(always)]
    fn columns(x: &[f32], _: usize, out: &mut [Self]) {
        out.copy_from_slice(&x[..out.len()]);
    }

    #[inline(always)]
    fn abs(self) -> Self {
        f32::abs(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        if self < other { self } else { other }
    }

    #[inline(always)]
    fn gt(self, other: Self) -> bool {
        self > other
    }

    #[inline(always)]
    fn eq(self, other: Self) -> bool {
        self == other
    }

    #[inline(always)]
    fn ne(self, other: Self) -> bool {
        self != other
    }

    #[inline(always)]
    fn select(mask: bool, yes: Self, no: Self) -> Self {
        if mask { yes } else { no }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self
    }

    #[inline(always)]
    fn bits(mask: bool) -> u64 {
        u64::from(mask)
    }

    #[inline(always)]
    fn away_from_zero(self, x: f32) -> Self {
        self + x.copysign(self)
    }

    #[inline(always)]
    fn round_to_quant(self, min: i32, max: i32) -> Self {
        nearest_int(self).clamp(min, max) as f32
    }

    #[inline(always)]
    fn from_quants(quants: &[u8]) -> Self {
        f32::from(quants[0])
    }

    #[inline(always)]
    fn truncate_to_bytes(self, out: &mut [u8]) {
        out[0] = truncate(self) as u8;
    }

    #[inline(always)]
    fn nearest(self, steps: &Steps) -> Self {
        let mut step = 0;
        for half in [8, 4, 2, 1] {
            step += if self < steps.middles[step + half - 1] {
                0
            } else {
                half
            };
        }
        steps.values[step]
    }

    #[inline(always)]
    fn look_up(table: &[f32; 16], quants: &[u8]) -> Self {
        table[usize::from(quants[0] & 15)]
    }
}
