//! Numbers side by side, one of each of several blocks.
//!
//! A lane does what scalar code would do for its block, in the same order, so their number
//! changes no result.

use std::ops::{Add, BitAnd, Div, Mul, Sub};

use super::float::nearest_int;

/// The most lanes that any instruction set has.
pub(super) const MAX_LANES: usize = 16;

/// One number of each of `N` blocks.
pub(crate) trait Lanes:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// At most [`MAX_LANES`].
    const N: usize;

    /// One condition of each block.
    type Mask: Copy + BitAnd<Output = Self::Mask>;

    /// The same number for every block.
    fn splat(x: f32) -> Self;

    /// The first `N` numbers.
    fn load(x: &[f32; MAX_LANES]) -> Self;

    /// The numbers, then zeros.
    fn store(self) -> [f32; MAX_LANES];

    fn abs(self) -> Self;

    fn gt(self, other: Self) -> Self::Mask;

    fn eq(self, other: Self) -> Self::Mask;

    /// `yes` where the condition holds and `no` elsewhere.
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// [`nearest_int`], then clamped, as a number again.
    fn round_to_code(self, min: i32, max: i32) -> Self;
}

/// A single lane: the specification.
impl Lanes for f32 {
    const N: usize = 1;

    type Mask = bool;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn load(x: &[f32; MAX_LANES]) -> Self {
        x[0]
    }

    #[inline(always)]
    fn store(self) -> [f32; MAX_LANES] {
        let mut out = [0.0; MAX_LANES];
        out[0] = self;
        out
    }

    #[inline(always)]
    fn abs(self) -> Self {
        f32::abs(self)
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
    fn select(mask: bool, yes: Self, no: Self) -> Self {
        if mask { yes } else { no }
    }

    #[inline(always)]
    fn round_to_code(self, min: i32, max: i32) -> Self {
        nearest_int(self).clamp(min, max) as f32
    }
}

/// Element `i` of each of up to `V::N` blocks; lanes without a block hold zeros.
#[inline(always)]
pub(super) fn transpose<V: Lanes, const N: usize>(blocks: &[[f32; N]]) -> [V; N] {
    let mut columns = [[0.0; MAX_LANES]; N];
    for (k, block) in blocks.iter().enumerate().take(V::N) {
        for (column, &x) in columns.iter_mut().zip(block) {
            column[k] = x;
        }
    }
    let mut lanes = [V::splat(0.0); N];
    for (lanes, column) in lanes.iter_mut().zip(&columns) {
        *lanes = V::load(column);
    }
    lanes
}

/// Sum of the squares of each block, as a chain.
#[inline(always)]
pub(super) fn energies<V: Lanes, const N: usize>(blocks: &[[f32; N]]) -> Vec<f32> {
    let mut sums = vec![0.0; blocks.len()];
    for (blocks, sums) in blocks.chunks(V::N).zip(sums.chunks_mut(V::N)) {
        for i in 0..N {
            for (sum, block) in sums.iter_mut().zip(blocks) {
                *sum += block[i] * block[i];
            }
        }
    }
    sums
}
