//! Shared code of the types without a search: block parameters of 32 elements, then the quants.
//!
//! Block parameters (the scale and its inverse) need divisions, so they are computed for [`BATCH`] blocks
//! at once.

use super::block::Half;
use crate::float::{f32_to_f16, map, reciprocal};
use crate::simd::lanes::Lanes;

/// Blocks per batch.
pub(crate) const BATCH: usize = 16;

/// Converts to half precision.
#[inline(always)]
pub(crate) fn halves(x: &[f32; BATCH]) -> [Half; BATCH] {
    let mut out = [Half::ZERO; BATCH];
    for (out, bits) in out.iter_mut().zip(map(x, f32_to_f16)) {
        *out = Half::from_bits(bits);
    }
    out
}

/// Returns the largest magnitude, ignoring NaN. The length is a multiple of 16.
#[inline(always)]
pub(crate) fn max_abs<V: Lanes>(x: &[f32]) -> f32 {
    let mut max = V::splat(0.0);
    for x in x.chunks_exact(V::N) {
        max = V::load(x).abs().max(max);
    }
    max.largest()
}

/// Returns the first element of the largest magnitude with its sign; 0 if all are zero.
#[inline(always)]
pub(crate) fn extreme<V: Lanes>(x: &[f32; 32]) -> f32 {
    let max = max_abs::<V>(x);
    if max > 0.0 {
        let mut bits = 0;
        for (i, x) in x.chunks_exact(V::N).enumerate() {
            bits |= V::bits(V::load(x).abs().eq(V::splat(max))) << (i * V::N);
        }
        x[bits.trailing_zeros() as usize % 32]
    } else {
        0.0
    }
}

/// Returns the smallest and the largest element; the first one among equals, because zeros differ in sign.
#[inline(always)]
pub(crate) fn range<V: Lanes>(x: &[f32; 32]) -> (f32, f32) {
    let (mut lo, mut hi) = (V::splat(f32::MAX), V::splat(-f32::MAX));
    for x in x.chunks_exact(V::N) {
        lo = V::load(x).min(lo);
        hi = V::load(x).max(hi);
    }
    let (lo, hi) = (-(V::splat(-1.0) * lo).largest(), hi.largest());
    (first_of_value(lo, x), first_of_value(hi, x))
}

/// Returns the first element that equals `value`, possibly a zero of the other sign.
#[inline(always)]
fn first_of_value(value: f32, x: &[f32; 32]) -> f32 {
    if value != 0.0 {
        return value;
    }
    x.iter().copied().find(|&x| x == 0.0).unwrap_or(value)
}

/// The largest number below 0.5: adding it carries a fraction of a half or more to the next integer.
const NEARLY_HALF: f32 = 0.5 - f32::EPSILON / 4.0;

/// Moves each number so that truncation rounds it, ties away from zero, like C's `roundf`.
#[inline(always)]
pub(crate) fn before_truncation<V: Lanes>(x: V) -> V {
    x.away_from_zero(NEARLY_HALF)
}

/// Returns the low byte of `f` of each element, truncated.
#[inline(always)]
pub(crate) fn quants<V: Lanes, const N: usize>(x: &[f32; N], f: impl Fn(V) -> V) -> [u8; N] {
    let mut quants = [0; N];
    for (x, quants) in x.chunks_exact(V::N).zip(quants.chunks_exact_mut(V::N)) {
        f(V::load(x)).truncate_to_bytes(quants);
    }
    quants
}

/// Returns the largest magnitude, and each element relative to it, rounded to -1, 0 or 1, as quants 0 to 2.
#[inline(always)]
pub(crate) fn ternary<V: Lanes, const N: usize>(x: &[f32; N]) -> (f32, [u8; N]) {
    let d = max_abs::<V>(x);
    let inverse = V::splat(reciprocal(d));
    let mut quants = quants::<V, N>(x, |x| before_truncation(x * inverse));
    for quant in &mut quants {
        *quant = quant.wrapping_add(1);
    }
    (d, quants)
}

/// Applies `f` to each quant, converted to a float.
#[inline(always)]
pub(crate) fn numbers<V: Lanes, const N: usize>(
    quants: &[u8; N],
    out: &mut [f32; N],
    f: impl Fn(V) -> V,
) {
    for (quants, out) in quants.chunks_exact(V::N).zip(out.chunks_exact_mut(V::N)) {
        f(V::from_quants(quants)).store(out);
    }
}

/// Applies `f` to the table entry of each quant.
#[inline(always)]
pub(crate) fn entries<V: Lanes>(
    table: &[f32; 16],
    quants: &[u8; 32],
    out: &mut [f32; 32],
    f: impl Fn(V) -> V,
) {
    for (quants, out) in quants.chunks_exact(V::N).zip(out.chunks_exact_mut(V::N)) {
        f(V::look_up(table, quants)).store(out);
    }
}
