//! Fits a scale for quants with an offset: `make_qx_quants` and `make_q3_quants` of ggml. Every step is in
//! ggml's order, because another order rounds differently.
//!
//! Several blocks are fitted at once, one per lane. A branch of the scalar search becomes a select per
//! lane.

use super::weights::{NEARLY_ZERO, Weights};
use crate::float::{map, nearest_int};
use crate::simd::lanes::{Lanes, MAX_LANES, Pair, transpose};

/// The result of a fit: `x = scale * (quant - middle)`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Symmetric {
    pub(crate) scale: f32,
    /// Sum of the weights.
    pub(crate) weight: f32,
    /// Steps per unit of `x`; 0 for a block of zeros.
    inverse: f32,
}

impl Symmetric {
    /// Returns the quants of the fitted block; all 0 for a block of zeros.
    #[inline(always)]
    pub(crate) fn quants<const N: usize>(&self, x: &[f32; N], middle: i32) -> [u8; N] {
        if self.inverse == 0.0 {
            return [0; N];
        }
        map(x, |x| {
            (nearest_int(self.inverse * x).clamp(-middle, middle - 1) + middle) as u8
        })
    }
}

/// Returns the first element of the largest magnitude of each block, and that magnitude.
#[inline(always)]
pub(crate) fn extremes<V: Lanes, const N: usize>(x: &[V; N]) -> (V, V) {
    let (mut magnitude, mut extreme) = (V::splat(0.0), V::splat(0.0));
    for &x in x {
        let larger = x.abs().gt(magnitude);
        magnitude = x.abs().max(magnitude);
        extreme = V::select(larger, x, extreme);
    }
    (extreme, magnitude)
}

/// Fits the scale of least squared error for each block, quants `0..2 * middle`.
#[inline(always)]
pub(crate) fn fit_symmetric<V: Lanes, const N: usize>(
    x: &[[f32; N]],
    weights: Weights<'_, N>,
    middle: i32,
) -> Vec<Symmetric> {
    let mut fits = Vec::with_capacity(x.len());
    for (i, blocks) in x.chunks(Pair::<V>::N).enumerate() {
        let x = transpose::<Pair<V>, N>(blocks);
        let w = weights.of(&x, i * Pair::<V>::N, blocks.len());
        let mut fields = [[0.0; MAX_LANES]; 3];
        for (field, lanes) in fields.iter_mut().zip(fit(&x, &w, middle)) {
            lanes.store(field);
        }
        let [scale, weight, inverse] = fields;
        fits.extend((0..blocks.len()).map(|k| Symmetric {
            scale: scale[k],
            weight: weight[k],
            inverse: inverse[k],
        }));
    }
    fits
}

/// Returns the fields of [`Symmetric`]. Tries scales that map the largest magnitude to between
/// `middle - 0.9` and `middle + 0.9` steps.
#[inline(always)]
fn fit<V: Lanes, const N: usize>(x: &[V; N], w: &[V; N], middle: i32) -> [V; 3] {
    let zero = V::splat(0.0);
    let (extreme, magnitude) = extremes(x);
    let mut weight = zero;
    let mut wx = *x;
    for i in 0..N {
        weight = weight + w[i];
        wx[i] = w[i] * x[i];
    }
    let is_zero = V::splat(NEARLY_ZERO).gt(magnitude);
    if V::all(is_zero) {
        return [zero, weight, zero];
    }
    let mut inverse = V::splat(-(middle as f32)) / extreme;
    let (sum_xl, sum_l2) = sums(x, w, &wx, inverse, middle);
    let mut scale = V::select(sum_l2.eq(zero), zero, sum_xl / sum_l2);
    let mut best = scale * sum_xl;
    for step in (-9..=9).filter(|&step| step != 0) {
        let trial_inverse = V::splat(-(middle as f32 + 0.1 * step as f32)) / extreme;
        let (sum_xl, sum_l2) = sums(x, w, &wx, trial_inverse, middle);
        let better = sum_l2.gt(zero) & (sum_xl * sum_xl).gt(best * sum_l2);
        scale = V::select(better, sum_xl / sum_l2, scale);
        best = V::select(better, scale * sum_xl, best);
        inverse = V::select(better, trial_inverse, inverse);
    }
    [
        V::select(is_zero, zero, scale),
        weight,
        V::select(is_zero, zero, inverse),
    ]
}

/// Sums `w x l` and `w l l` over the quants `l` of `x` in steps of `1 / inverse`. No quant is beyond
/// `middle + 1` in a block that is not zero.
#[inline(always)]
fn sums<V: Lanes, const N: usize>(
    x: &[V; N],
    w: &[V; N],
    wx: &[V; N],
    inverse: V,
    middle: i32,
) -> (V, V) {
    let (mut sum_xl, mut sum_l2) = (V::splat(0.0), V::splat(0.0));
    for i in 0..N {
        let l = (inverse * x[i]).round_within(-middle as f32, (middle - 1) as f32);
        sum_xl = sum_xl + wx[i] * l;
        sum_l2 = sum_l2 + w[i] * l * l;
    }
    (sum_xl, sum_l2)
}

/// Fits scale and quants `0..2 * middle` of each block by coordinate descent, with errors weighted by
/// `x^2`. The quants of a block of zeros are 0.
#[inline(always)]
pub(crate) fn descend<V: Lanes, const N: usize>(
    x: &[[f32; N]],
    middle: i32,
) -> Vec<(f32, [u8; N])> {
    // The dependency chain from one element to the next is long: four vectors hide its latency.
    type Lanes4<V> = Pair<Pair<V>>;
    let mut fits = Vec::with_capacity(x.len());
    for blocks in x.chunks(Lanes4::<V>::N) {
        let (scale, quants) = descend_lanes(&transpose::<Lanes4<V>, N>(blocks), middle);
        let mut scales = [0.0; MAX_LANES];
        scale.store(&mut scales);
        let mut columns = [[0; MAX_LANES]; N];
        for (column, quant) in columns.iter_mut().zip(quants) {
            quant.truncate_to_bytes(column);
        }
        fits.extend((0..blocks.len()).map(|k| {
            let mut quants = [0; N];
            for (quant, column) in quants.iter_mut().zip(&columns) {
                *quant = column[k];
            }
            (scales[k], quants)
        }));
    }
    fits
}

#[inline(always)]
fn descend_lanes<V: Lanes, const N: usize>(x: &[V; N], middle: i32) -> (V, [V; N]) {
    let zero = V::splat(0.0);
    let (extreme, magnitude) = extremes(x);
    let is_zero = V::splat(NEARLY_ZERO).gt(magnitude);
    if V::all(is_zero) {
        return (zero, [zero; N]);
    }
    let inverse = V::splat(-(middle as f32)) / extreme;
    let (mut w, mut wx, mut quants) = (*x, *x, *x);
    let (mut sum_xl, mut sum_l2) = (zero, zero);
    for i in 0..N {
        w[i] = x[i] * x[i];
        wx[i] = w[i] * x[i];
        let l = (inverse * x[i]).round_within(-middle as f32, (middle - 1) as f32);
        quants[i] = l;
        sum_xl = sum_xl + wx[i] * l;
        sum_l2 = sum_l2 + w[i] * l * l;
    }
    for _ in 0..5 {
        // Blocks without a change in one round do not change in later rounds.
        let mut changed = zero.ne(zero);
        for i in 0..N {
            let l = quants[i];
            let rest_xl = sum_xl - wx[i] * l;
            let rest_l2 = sum_l2 - w[i] * l * l;
            let quant = (x[i] * rest_l2 / rest_xl).round_to_quant(-middle, middle - 1);
            let trial_xl = rest_xl + wx[i] * quant;
            let trial_l2 = rest_l2 + w[i] * quant * quant;
            let better = (trial_xl * trial_xl * sum_l2).gt(sum_xl * sum_xl * trial_l2);
            let better = better & trial_l2.gt(zero) & quant.ne(l) & rest_xl.gt(zero);
            quants[i] = V::select(better, quant, l);
            sum_xl = V::select(better, trial_xl, sum_xl);
            sum_l2 = V::select(better, trial_l2, sum_l2);
            changed = changed | better;
        }
        if !V::any(changed) {
            break;
        }
    }
    let scale = V::select(sum_l2.gt(zero), sum_xl / sum_l2, zero);
    for quant in &mut quants {
        *quant = V::select(is_zero, zero, *quant + V::splat(middle as f32));
    }
    (V::select(is_zero, zero, scale), quants)
}
