//! `L` numbers side by side, one of each of `L` blocks.
//!
//! A lane does what scalar code would do for its block, in the same order, so the width changes
//! no result. The operations are loops over arrays of fixed length: inlined into a function with
//! the target feature, each becomes one vector instruction.

use std::ops::{Add, BitAnd, Div, Mul, Neg, Sub};

/// One number of each block.
#[derive(Clone, Copy)]
pub(super) struct Lanes<const L: usize>(pub(super) [f32; L]);

/// One condition of each block.
#[derive(Clone, Copy)]
pub(super) struct Mask<const L: usize>([bool; L]);

impl<const L: usize> Lanes<L> {
    pub(super) const ZERO: Self = Lanes([0.0; L]);

    #[inline(always)]
    pub(super) fn splat(x: f32) -> Self {
        Lanes([x; L])
    }

    #[inline(always)]
    pub(super) fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        for x in &mut self.0 {
            *x = f(*x);
        }
        self
    }

    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        for k in 0..L {
            self.0[k] = f(self.0[k], other.0[k]);
        }
        self
    }

    #[inline(always)]
    fn compare(self, other: Self, f: impl Fn(&f32, &f32) -> bool) -> Mask<L> {
        let mut mask = [false; L];
        for (mask, (a, b)) in mask.iter_mut().zip(self.0.iter().zip(&other.0)) {
            *mask = f(a, b);
        }
        Mask(mask)
    }

    #[inline(always)]
    pub(super) fn eq(self, other: Self) -> Mask<L> {
        self.compare(other, |a, b| a == b)
    }

    #[inline(always)]
    pub(super) fn gt(self, other: Self) -> Mask<L> {
        self.compare(other, |a, b| a > b)
    }

    #[inline(always)]
    pub(super) fn lt(self, other: Self) -> Mask<L> {
        self.compare(other, |a, b| a < b)
    }
}

impl<const L: usize> Mask<L> {
    /// Lane by lane, `yes` where the condition holds and `no` elsewhere.
    #[inline(always)]
    pub(super) fn select(self, yes: Lanes<L>, no: Lanes<L>) -> Lanes<L> {
        let mut out = no;
        for k in 0..L {
            out.0[k] = if self.0[k] { yes.0[k] } else { no.0[k] };
        }
        out
    }
}

impl<const L: usize> BitAnd for Mask<L> {
    type Output = Self;

    #[inline(always)]
    fn bitand(mut self, other: Self) -> Self {
        for k in 0..L {
            self.0[k] &= other.0[k];
        }
        self
    }
}

impl<const L: usize> Add for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

impl<const L: usize> Sub for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

impl<const L: usize> Mul for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
}

impl<const L: usize> Div for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
}

impl<const L: usize> Neg for Lanes<L> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        self.map(|x| -x)
    }
}

/// Element `i` of each of up to `L` blocks; lanes without a block hold zeros.
#[inline(always)]
pub(super) fn transpose<const N: usize, const L: usize>(blocks: &[[f32; N]]) -> [Lanes<L>; N] {
    let mut lanes = [Lanes::ZERO; N];
    for (k, block) in blocks.iter().enumerate().take(L) {
        for i in 0..N {
            lanes[i].0[k] = block[i];
        }
    }
    lanes
}

/// Sum of the squares of each block, as a chain.
#[inline(always)]
pub(super) fn energies<const N: usize, const L: usize>(blocks: &[[f32; N]]) -> Vec<f32> {
    let mut sums = vec![0.0; blocks.len()];
    for (blocks, sums) in blocks.chunks(L).zip(sums.chunks_mut(L)) {
        for i in 0..N {
            for (sum, block) in sums.iter_mut().zip(blocks) {
                *sum += block[i] * block[i];
            }
        }
    }
    sums
}
