//! SIMD lanes: one element of each of several blocks, or several elements of one block.
//!
//! Each lane computes what scalar code would compute, in the same order, so the number of lanes does not
//! affect results.
//!
//! Code over lanes must be inlined into a [`Kernel`](super::Kernel), because only that is compiled for the
//! instructions: every function is `#[inline(always)]`, and closures are used only if they are called from
//! one place.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Sub};

use super::steps::Steps;
use crate::float::MAGIC;

/// The maximum number of lanes: two pairs of sixteen.
pub(crate) const MAX_LANES: usize = 64;

/// A vector of `N` numbers.
pub(crate) trait Lanes:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Number of lanes, a power of two, at most [`MAX_LANES`].
    const N: usize;

    /// One condition per lane.
    type Mask: Copy + BitAnd<Output = Self::Mask> + BitOr<Output = Self::Mask>;

    /// The same number in every lane.
    fn splat(x: f32) -> Self;

    /// Loads the first `N` elements of `x`.
    fn load(x: &[f32]) -> Self;

    /// Stores to the first `N` elements of `out`.
    fn store(self, out: &mut [f32]);

    /// Loads columns of a matrix of `N` rows that start `stride` apart: `out[c]` gets element `c` of every
    /// row.
    fn columns(x: &[f32], stride: usize, out: &mut [Self]);

    fn abs(self) -> Self;

    fn sqrt(self) -> Self;

    /// `self` if it is larger, else `other` (also if either is NaN).
    fn max(self, other: Self) -> Self;

    /// `self` if it is smaller, else `other` (also if either is NaN).
    fn min(self, other: Self) -> Self;

    fn gt(self, other: Self) -> Self::Mask;

    fn eq(self, other: Self) -> Self::Mask;

    fn ne(self, other: Self) -> Self::Mask;

    /// `yes` where the condition holds and `no` elsewhere.
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// Returns the largest number, provided that none is NaN.
    fn largest(self) -> f32;

    /// Bit `k` is the condition of lane `k`.
    fn bits(mask: Self::Mask) -> u64;

    /// Moves each number away from 0 by `x`, which is not negative.
    fn away_from_zero(self, x: f32) -> Self;

    /// [`nearest_int`](crate::float::nearest_int), then clamped, as a float.
    fn round_to_quant(self, min: i32, max: i32) -> Self;

    /// Converts bytes to floats.
    fn from_quants(quants: &[u8]) -> Self;

    /// Stores the low byte of each number, truncated as by [`truncate`](crate::float::truncate).
    fn truncate_to_bytes(self, out: &mut [u8]);

    /// Rounds each number to the value of the nearest step. Unspecified for NaN and for magnitudes above
    /// [`Steps::REACH`].
    fn nearest(self, steps: &Steps) -> Self;

    /// Looks up each quant, below 16, in a table.
    fn look_up(table: &[f32; 16], quants: &[u8]) -> Self;

    #[inline(always)]
    fn any(mask: Self::Mask) -> bool {
        Self::bits(mask) != 0
    }

    #[inline(always)]
    fn all(mask: Self::Mask) -> bool {
        Self::bits(mask) == u64::MAX >> (64 - Self::N)
    }

    /// Rounds to the nearest integer, ties to even, and clamps; returns `min` for NaN. Equal to
    /// [`round_to_quant`](Lanes::round_to_quant) for magnitudes below 2^22.
    #[inline(always)]
    fn round_within(self, min: f32, max: f32) -> Self {
        let (low, high) = (Self::splat(MAGIC + min), Self::splat(MAGIC + max));
        (self + Self::splat(MAGIC)).max(low).min(high) - Self::splat(MAGIC)
    }
}

/// Loads columns one element at a time.
#[inline(always)]
pub(crate) fn gather_columns<V: Lanes>(x: &[f32], stride: usize, first: usize, out: &mut [V]) {
    for (c, out) in out.iter_mut().enumerate() {
        let mut column = [0.0; MAX_LANES];
        for (k, slot) in column.iter_mut().enumerate().take(V::N) {
            *slot = x[k * stride + first + c];
        }
        *out = V::load(&column);
    }
}

/// Two vectors as one, with twice the lanes. Two independent dependency chains keep a core busy where one
/// would leave it waiting.
#[derive(Clone, Copy)]
pub(crate) struct Pair<T>(T, T);

macro_rules! pair_operators {
    ($($trait:ident $method:ident)+) => {
        $(impl<T: $trait<Output = T>> $trait for Pair<T> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Pair(self.0.$method(other.0), self.1.$method(other.1))
            }
        })+
    };
}

pair_operators!(Add add Sub sub Mul mul Div div BitAnd bitand BitOr bitor);

impl<V: Lanes> Lanes for Pair<V> {
    const N: usize = 2 * V::N;

    type Mask = Pair<V::Mask>;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Pair(V::splat(x), V::splat(x))
    }

    #[inline(always)]
    fn load(x: &[f32]) -> Self {
        Pair(V::load(x), V::load(&x[V::N..]))
    }

    #[inline(always)]
    fn store(self, out: &mut [f32]) {
        self.0.store(out);
        self.1.store(&mut out[V::N..]);
    }

    #[inline(always)]
    fn columns(x: &[f32], stride: usize, out: &mut [Self]) {
        const TILE: usize = 16;
        for (t, out) in out.chunks_mut(TILE).enumerate() {
            let mut halves = [[V::splat(0.0); TILE]; 2];
            for (half, columns) in halves.iter_mut().enumerate() {
                let first = half * V::N * stride + t * TILE;
                V::columns(&x[first..], stride, &mut columns[..out.len()]);
            }
            for (c, out) in out.iter_mut().enumerate() {
                *out = Pair(halves[0][c], halves[1][c]);
            }
        }
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Pair(self.0.abs(), self.1.abs())
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Pair(self.0.sqrt(), self.1.sqrt())
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Pair(self.0.max(other.0), self.1.max(other.1))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Pair(self.0.min(other.0), self.1.min(other.1))
    }

    #[inline(always)]
    fn gt(self, other: Self) -> Self::Mask {
        Pair(self.0.gt(other.0), self.1.gt(other.1))
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Self::Mask {
        Pair(self.0.eq(other.0), self.1.eq(other.1))
    }

    #[inline(always)]
    fn ne(self, other: Self) -> Self::Mask {
        Pair(self.0.ne(other.0), self.1.ne(other.1))
    }

    #[inline(always)]
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        Pair(
            V::select(mask.0, yes.0, no.0),
            V::select(mask.1, yes.1, no.1),
        )
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.0.max(self.1).largest()
    }

    #[inline(always)]
    fn bits(mask: Self::Mask) -> u64 {
        V::bits(mask.0) | (V::bits(mask.1) << V::N)
    }

    #[inline(always)]
    fn away_from_zero(self, x: f32) -> Self {
        Pair(self.0.away_from_zero(x), self.1.away_from_zero(x))
    }

    #[inline(always)]
    fn round_to_quant(self, min: i32, max: i32) -> Self {
        Pair(
            self.0.round_to_quant(min, max),
            self.1.round_to_quant(min, max),
        )
    }

    #[inline(always)]
    fn from_quants(quants: &[u8]) -> Self {
        Pair(V::from_quants(quants), V::from_quants(&quants[V::N..]))
    }

    #[inline(always)]
    fn truncate_to_bytes(self, out: &mut [u8]) {
        self.0.truncate_to_bytes(out);
        self.1.truncate_to_bytes(&mut out[V::N..]);
    }

    #[inline(always)]
    fn nearest(self, steps: &Steps) -> Self {
        Pair(self.0.nearest(steps), self.1.nearest(steps))
    }

    #[inline(always)]
    fn look_up(table: &[f32; 16], quants: &[u8]) -> Self {
        Pair(
            V::look_up(table, quants),
            V::look_up(table, &quants[V::N..]),
        )
    }
}

/// Transposes up to `V::N` blocks: element `i` of each. Lanes without a block hold zeros.
#[inline(always)]
pub(crate) fn transpose<V: Lanes, const N: usize>(blocks: &[[f32; N]]) -> [V; N] {
    let mut columns = [V::splat(0.0); N];
    if blocks.len() >= V::N {
        V::columns(blocks.as_flattened(), N, &mut columns);
    } else {
        let mut padded = [[0.0; N]; MAX_LANES];
        padded[..blocks.len()].copy_from_slice(blocks);
        V::columns(padded.as_flattened(), N, &mut columns);
    }
    columns
}

/// Returns the sum of squares of each `len` numbers, added in order.
#[inline(always)]
pub(crate) fn energies<V: Lanes>(x: &[f32], len: usize) -> Vec<f32> {
    const TILE: usize = 16;
    let mut sums = vec![0.0; x.len() / len];
    let groups = x.chunks(V::N * len).zip(sums.chunks_mut(V::N));
    for (x, sums) in groups {
        let mut start = 0;
        if sums.len() == V::N {
            let mut sum = V::splat(0.0);
            while start + TILE <= len {
                let mut tile = [V::splat(0.0); TILE];
                V::columns(&x[start..], len, &mut tile);
                for x in tile {
                    sum = sum + x * x;
                }
                start += TILE;
            }
            sum.store(sums);
        }
        for i in start..len {
            for (k, sum) in sums.iter_mut().enumerate() {
                let x = x[k * len + i];
                *sum += x * x;
            }
        }
    }
    sums
}
