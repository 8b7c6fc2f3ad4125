//! Fits a common scale to the scales of sub-blocks: `make_qp_quants` of ggml. Every step is in ggml's
//! order, because another order rounds differently.

use super::weights::NEARLY_ZERO;
use crate::simd::lanes::{Lanes, MAX_LANES, transpose};

/// Returns a common scale and quants `0..=max_quant` for each `N` numbers, nearly all not negative. `w` are the weights
/// of their squared errors.
#[inline(always)]
pub(crate) fn fit_positive<V: Lanes, const N: usize>(
    x: &[[f32; N]],
    w: &[[f32; N]],
    max_quant: u8,
) -> Vec<(f32, [u8; N])> {
    let mut fits = Vec::with_capacity(x.len());
    for (x, w) in x.chunks(V::N).zip(w.chunks(V::N)) {
        let (scale, quants) = fit(&transpose::<V, N>(x), &transpose::<V, N>(w), max_quant);
        let mut scales = [0.0; MAX_LANES];
        scale.store(&mut scales);
        let mut columns = [[0; MAX_LANES]; N];
        for (column, quant) in columns.iter_mut().zip(quants) {
            quant.truncate_to_bytes(column);
        }
        fits.extend((0..x.len()).map(|k| (scales[k], std::array::from_fn(|i| columns[i][k]))));
    }
    fits
}

/// Returns the low byte of each quant, which is how ggml stores it; only numbers below 0 change.
#[inline(always)]
fn low_byte<V: Lanes>(quants: V) -> V {
    if !V::any(V::splat(0.0).gt(quants)) {
        return quants;
    }
    let mut bytes = [0; MAX_LANES];
    quants.truncate_to_bytes(&mut bytes);
    V::from_quants(&bytes)
}

/// Returns the error of quantizing in steps of `1 / inverse`, with the quants or with their low bytes.
#[inline(always)]
fn weighted_error<V: Lanes, const N: usize, const LOW_BYTES: bool>(
    x: &[V; N],
    w: &[V; N],
    inverse: V,
    max_quant: i32,
) -> V {
    let scale = V::splat(1.0) / inverse;
    let mut sum = V::splat(0.0);
    for i in 0..N {
        let mut quant = (inverse * x[i]).round_to_quant(i32::MIN, max_quant);
        if LOW_BYTES {
            quant = low_byte(quant);
        }
        let t = x[i] - scale * quant;
        sum = sum + w[i] * t * t;
    }
    sum
}

#[inline(always)]
fn fit<V: Lanes, const N: usize>(x: &[V; N], w: &[V; N], max_quant: u8) -> (V, [V; N]) {
    let zero = V::splat(0.0);
    let mut largest = zero;
    for &x in x {
        largest = x.max(largest);
    }
    let is_zero = V::splat(NEARLY_ZERO).gt(largest);
    if V::all(is_zero) {
        return (zero, [zero; N]);
    }
    let limit = i32::from(max_quant);
    let mut inverse = V::splat(f32::from(max_quant)) / largest;
    let mut best = weighted_error::<V, N, true>(x, w, inverse, i32::MAX);
    for step in (-4..=4i8).filter(|&step| step != 0) {
        let trial = V::splat(0.1 * f32::from(step) + f32::from(max_quant)) / largest;
        let error = weighted_error::<V, N, false>(x, w, trial, limit);
        let better = best.gt(error);
        best = V::select(better, error, best);
        inverse = V::select(better, trial, inverse);
    }

    let mut quants = *x;
    let (mut sum_xl, mut sum_l2) = (zero, zero);
    for i in 0..N {
        let l = (inverse * x[i]).round_to_quant(i32::MIN, limit);
        quants[i] = low_byte(l);
        sum_xl = sum_xl + w[i] * x[i] * l;
        sum_l2 = sum_l2 + w[i] * l * l;
    }
    // Coordinate descent: moves one quant at a time to its optimum given the others.
    for _ in 0..5 {
        // Lanes without a change in one round do not change in later rounds.
        let mut changed = zero.ne(zero);
        for i in 0..N {
            let l = quants[i];
            let rest_xl = sum_xl - w[i] * x[i] * l;
            let rest_l2 = sum_l2 - w[i] * l * l;
            let quant = (x[i] * rest_l2 / rest_xl).round_to_quant(i32::MIN, limit);
            let trial_xl = rest_xl + w[i] * x[i] * quant;
            let trial_l2 = rest_l2 + w[i] * quant * quant;
            let better = (trial_xl * trial_xl * sum_l2).gt(sum_xl * sum_xl * trial_l2);
            let better = better & quant.ne(l) & rest_xl.gt(zero) & rest_l2.gt(zero);
            quants[i] = low_byte(V::select(better, quant, l));
            sum_xl = V::select(better, trial_xl, sum_xl);
            sum_l2 = V::select(better, trial_l2, sum_l2);
            changed = changed | better;
        }
        if !V::any(changed) {
            break;
        }
    }
    for quant in &mut quants {
        *quant = V::select(is_zero, zero, *quant);
    }
    let scale = V::select(sum_l2.gt(zero), sum_xl / sum_l2, zero);
    (V::select(is_zero, zero, scale), quants)
}
