//! The searches for scales: each tries several, keeps the one of least weighted error, and does
//! every step in the order of ggml's search of that name, because another order rounds otherwise.
//!
//! `L` blocks are searched side by side. A branch of the scalar search becomes a choice per lane.

use super::float::{extreme, map, nearest_int};
use super::lanes::{Lanes, transpose};

/// Weights under an importance matrix: `q * sqrt(sigma2 + x^2)`, `q` the importance of the column
/// and `sigma2` one number for each `per` blocks.
#[inline(always)]
pub(super) fn importance_weights<const N: usize>(
    x: &[[f32; N]],
    importance: &[[f32; N]],
    sigma2: &[f32],
    per: usize,
) -> Vec<[f32; N]> {
    let mut weights = importance.to_vec();
    for (i, (w, x)) in weights.iter_mut().zip(x).enumerate() {
        for (w, x) in w.iter_mut().zip(x) {
            *w *= (sigma2[i / per] + x * x).sqrt();
        }
    }
    weights
}

/// Below this a block counts as zero.
pub(super) const NEARLY_ZERO: f32 = 1e-15;

/// What [`fit_affine`] tries.
#[derive(Clone, Copy)]
pub(super) struct AffineSearch {
    /// Codes are `0..=max_code`.
    pub(super) max_code: u8,
    /// The first candidate spreads the range over `max_code + first_shift` codes.
    pub(super) first_shift: f32,
    /// From one candidate to the next.
    pub(super) shift_step: f32,
    /// Candidates after the first.
    pub(super) n_steps: u8,
    /// What is weighted and summed.
    pub(super) error: ErrorNorm,
    /// How a candidate code is brought into range.
    pub(super) clamp: Clamp,
}

/// The error of one element.
#[derive(Clone, Copy)]
pub(super) enum ErrorNorm {
    Absolute,
    Squared,
}

impl ErrorNorm {
    /// Weighted error of `scale * code + offset`.
    #[inline(always)]
    fn sum<V: Lanes, const N: usize>(
        self,
        x: &[V; N],
        w: &[V; N],
        codes: &[V; N],
        scale: V,
        offset: V,
    ) -> V {
        let mut sum = V::splat(0.0);
        for i in 0..N {
            let t = scale * codes[i] + offset - x[i];
            let error = match self {
                ErrorNorm::Absolute => t.abs(),
                ErrorNorm::Squared => t * t,
            };
            sum = sum + w[i] * error;
        }
        sum
    }
}

/// Whether codes are clamped as integers or before they are rounded: the same but for numbers
/// beyond 2^22, where rounding wraps.
#[derive(Clone, Copy)]
pub(super) enum Clamp {
    Rounded,
    Unrounded,
}

impl AffineSearch {
    /// The search of every type that is given an importance matrix.
    pub(super) const fn weighted(max_code: u8) -> Self {
        AffineSearch {
            max_code,
            first_shift: -0.9,
            shift_step: 0.05,
            n_steps: 36,
            error: ErrorNorm::Squared,
            clamp: Clamp::Unrounded,
        }
    }

    /// Codes of numbers that lie `v` steps above the minimum.
    #[inline(always)]
    fn codes<V: Lanes>(&self, v: V, clamp: Clamp) -> V {
        let v = match clamp {
            Clamp::Rounded => v,
            Clamp::Unrounded => {
                let (zero, max) = (V::splat(0.0), V::splat(f32::from(self.max_code)));
                let v = V::select(v.gt(zero), v, zero);
                V::select(max.gt(v), v, max)
            }
        };
        v.round_to_code(0, i32::from(self.max_code))
    }
}

/// `x = scale * code - min`.
#[derive(Clone, Copy, Default)]
pub(super) struct Affine {
    pub(super) scale: f32,
    pub(super) min: f32,
    /// Sum of the weights.
    pub(super) weight: f32,
    /// Codes count steps of `1 / inverse` from `origin`.
    inverse: f32,
    origin: f32,
}

impl Affine {
    /// The codes of the block that was fitted.
    #[inline(always)]
    pub(super) fn codes<const N: usize>(&self, x: &[f32; N], search: &AffineSearch) -> [u8; N] {
        map(x, |x| {
            search.codes(self.inverse * (x - self.origin), search.clamp) as u8
        })
    }
}

/// Scale and minimum of least error under the weights `w`, for each block: `make_qkx2_quants` and
/// `make_qkx3_quants` of ggml.
#[inline(always)]
pub(super) fn fit_affine<V: Lanes, const N: usize>(
    x: &[[f32; N]],
    w: &[[f32; N]],
    search: &AffineSearch,
) -> Vec<Affine> {
    let mut fits = Vec::with_capacity(x.len());
    for (x, w) in x.chunks(V::N).zip(w.chunks(V::N)) {
        let lanes = fit_affine_lanes::<V, N>(&transpose(x), &transpose(w), search);
        let [scale, min, weight, inverse, origin] = lanes.map(V::store);
        fits.extend((0..x.len()).map(|k| Affine {
            scale: scale[k],
            min: min[k],
            weight: weight[k],
            inverse: inverse[k],
            origin: origin[k],
        }));
    }
    fits
}

/// The fields of [`Affine`]. For each candidate spread rounds the codes, then solves for the best
/// line through them.
#[inline(always)]
fn fit_affine_lanes<V: Lanes, const N: usize>(
    x: &[V; N],
    w: &[V; N],
    search: &AffineSearch,
) -> [V; 5] {
    let zero = V::splat(0.0);
    let (mut lo, mut hi) = (x[0], x[0]);
    let mut sum_w = w[0];
    let mut sum_x = w[0] * x[0];
    for i in 1..N {
        lo = V::select(lo.gt(x[i]), x[i], lo);
        hi = V::select(x[i].gt(hi), x[i], hi);
        sum_w = sum_w + w[i];
        sum_x = sum_x + w[i] * x[i];
    }
    lo = V::select(lo.gt(zero), zero, lo);
    let lowest = lo;

    let max_code = f32::from(search.max_code);
    let mut inverse = V::splat(max_code) / (hi - lo);
    let mut origin = lo;
    let mut scale = V::splat(1.0) / inverse;
    let mut trial = [zero; N];
    for i in 0..N {
        trial[i] = search.codes(inverse * (x[i] - lo), Clamp::Rounded);
    }
    let mut best = search.error.sum(x, w, &trial, scale, lo);
    // Where the range is so small that its inverse is infinite, these first codes are all 0.
    inverse = V::select(inverse.gt(V::splat(f32::MAX)), zero, inverse);

    for step in 0..=search.n_steps {
        let shift = search.first_shift + search.shift_step * f32::from(step);
        let trial_inverse = V::splat(shift + max_code) / (hi - lo);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (zero, zero, zero);
        for i in 0..N {
            let l = search.codes(trial_inverse * (x[i] - lo), search.clamp);
            trial[i] = l;
            sum_l = sum_l + w[i] * l;
            sum_l2 = sum_l2 + w[i] * l * l;
            sum_xl = sum_xl + w[i] * l * x[i];
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        let trial_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let trial_lo = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        // The format has no minimum above 0: there the best line through 0.
        let above = trial_lo.gt(zero);
        let trial_scale = V::select(above, sum_xl / sum_l2, trial_scale);
        let trial_lo = V::select(above, zero, trial_lo);
        let error = search.error.sum(x, w, &trial, trial_scale, trial_lo);
        let better = determinant.gt(zero) & best.gt(error);
        best = V::select(better, error, best);
        inverse = V::select(better, trial_inverse, inverse);
        origin = V::select(better, lo, origin);
        scale = V::select(better, trial_scale, scale);
        lo = V::select(better, trial_lo, lo);
    }

    // A block of equal numbers has codes 0 and nothing but a minimum.
    let varies = hi.gt(lowest);
    let min = V::select(varies, lo, lowest) * V::splat(-1.0);
    [
        V::select(varies, scale, zero),
        min,
        sum_w,
        V::select(varies, inverse, zero),
        V::select(varies, origin, zero),
    ]
}

/// `x = scale * (code - middle)`.
#[derive(Clone, Copy, Default)]
pub(super) struct Symmetric {
    pub(super) scale: f32,
    /// Sum of the weights.
    pub(super) weight: f32,
    /// Steps in a unit of `x`; 0 for a block of zeros.
    inverse: f32,
}

impl Symmetric {
    /// The codes of the block that was fitted; all 0 for a block of zeros.
    #[inline(always)]
    pub(super) fn codes<const N: usize>(&self, x: &[f32; N], middle: i32) -> [u8; N] {
        if self.inverse == 0.0 {
            return [0; N];
        }
        symmetric_codes(x, self.inverse, middle)
    }
}

/// Codes `0..2 * middle` of `x` in steps of `1 / inverse`.
#[inline(always)]
fn symmetric_codes<const N: usize>(x: &[f32; N], inverse: f32, middle: i32) -> [u8; N] {
    map(x, |x| {
        (nearest_int(inverse * x).clamp(-middle, middle - 1) + middle) as u8
    })
}

/// Scale of least squared error under the weights `w`, for each block, codes `0..2 * middle`:
/// `make_qx_quants` of ggml.
#[inline(always)]
pub(super) fn fit_symmetric<V: Lanes, const N: usize>(
    x: &[[f32; N]],
    w: &[[f32; N]],
    middle: i32,
) -> Vec<Symmetric> {
    let mut fits = Vec::with_capacity(x.len());
    for (x, w) in x.chunks(V::N).zip(w.chunks(V::N)) {
        let lanes = fit_symmetric_lanes::<V, N>(&transpose(x), &transpose(w), middle);
        let [scale, weight, inverse] = lanes.map(V::store);
        fits.extend((0..x.len()).map(|k| Symmetric {
            scale: scale[k],
            weight: weight[k],
            inverse: inverse[k],
        }));
    }
    fits
}

/// The fields of [`Symmetric`]. Tries a few more and a few fewer steps to the largest magnitude
/// than there are.
#[inline(always)]
fn fit_symmetric_lanes<V: Lanes, const N: usize>(x: &[V; N], w: &[V; N], middle: i32) -> [V; 3] {
    let zero = V::splat(0.0);
    let (mut magnitude, mut extreme) = (zero, zero);
    let mut weight = zero;
    for i in 0..N {
        let larger = x[i].abs().gt(magnitude);
        magnitude = V::select(larger, x[i].abs(), magnitude);
        extreme = V::select(larger, x[i], extreme);
        weight = weight + w[i];
    }
    let mut inverse = V::splat(-(middle as f32)) / extreme;
    let (sum_xl, sum_l2) = symmetric_sums(x, w, inverse, middle);
    let mut scale = V::select(sum_l2.eq(zero), zero, sum_xl / sum_l2);
    let mut best = scale * sum_xl;
    for step in (-9..=9).filter(|&step| step != 0) {
        let trial_inverse = V::splat(-(middle as f32 + 0.1 * step as f32)) / extreme;
        let (sum_xl, sum_l2) = symmetric_sums(x, w, trial_inverse, middle);
        let better = sum_l2.gt(zero) & (sum_xl * sum_xl).gt(best * sum_l2);
        scale = V::select(better, sum_xl / sum_l2, scale);
        best = V::select(better, scale * sum_xl, best);
        inverse = V::select(better, trial_inverse, inverse);
    }
    let is_zero = V::splat(NEARLY_ZERO).gt(magnitude);
    [
        V::select(is_zero, zero, scale),
        weight,
        V::select(is_zero, zero, inverse),
    ]
}

/// Sums of `w x l` and `w l l` over the codes `l` of `x` in steps of `1 / inverse`.
#[inline(always)]
fn symmetric_sums<V: Lanes, const N: usize>(
    x: &[V; N],
    w: &[V; N],
    inverse: V,
    middle: i32,
) -> (V, V) {
    let (mut sum_xl, mut sum_l2) = (V::splat(0.0), V::splat(0.0));
    for i in 0..N {
        let l = (inverse * x[i]).round_to_code(-middle, middle - 1);
        sum_xl = sum_xl + w[i] * x[i] * l;
        sum_l2 = sum_l2 + w[i] * l * l;
    }
    (sum_xl, sum_l2)
}

/// Codes `0..=max_code` for numbers that are not negative (the scales of sub-blocks), and their
/// common scale: `make_qp_quants` of ggml.
#[inline(always)]
pub(super) fn fit_positive<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    max_code: u8,
) -> (f32, [u8; N]) {
    let max = largest(x);
    if max < NEARLY_ZERO {
        return (0.0, [0; N]);
    }
    let limit = i32::from(max_code);
    let weighted_error = |inverse: f32, limit: i32| {
        let scale = 1.0 / inverse;
        let mut sum = 0.0;
        for i in 0..N {
            let t = x[i] - scale * nearest_int(inverse * x[i]).min(limit) as f32;
            sum += w[i] * t * t;
        }
        sum
    };
    let mut inverse = limit as f32 / max;
    let mut best = weighted_error(inverse, i32::MAX);
    for step in (-4..=4).filter(|&step| step != 0) {
        let trial = (0.1 * step as f32 + limit as f32) / max;
        let error = weighted_error(trial, limit);
        if error < best {
            best = error;
            inverse = trial;
        }
    }

    let mut codes = map(x, |x| nearest_int(inverse * x).min(limit));
    let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
    for i in 0..N {
        let l = codes[i] as f32;
        sum_xl += w[i] * x[i] * l;
        sum_l2 += w[i] * l * l;
    }
    // Coordinate descent: move one code at a time to where the others would have it.
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let l = codes[i] as f32;
            let mut trial_xl = sum_xl - w[i] * x[i] * l;
            let mut trial_l2 = sum_l2 - w[i] * l * l;
            if trial_xl > 0.0 && trial_l2 > 0.0 {
                let code = nearest_int(x[i] * trial_l2 / trial_xl).min(limit);
                if code != codes[i] {
                    let l = code as f32;
                    trial_xl += w[i] * x[i] * l;
                    trial_l2 += w[i] * l * l;
                    if trial_xl * trial_xl * sum_l2 > sum_xl * sum_xl * trial_l2 {
                        codes[i] = code;
                        (sum_xl, sum_l2) = (trial_xl, trial_l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    let scale = if sum_l2 > 0.0 { sum_xl / sum_l2 } else { 0.0 };
    (scale, codes.map(|code| code as u8))
}

/// The largest number, 0 if none is above.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |max, &v| if v > max { v } else { max })
}

/// Scale and codes `0..2 * middle` by coordinate descent, errors weighted by `x^2`:
/// `make_q3_quants` of ggml. The codes of a block of zeros are 0.
#[inline(always)]
pub(super) fn descend<const N: usize>(x: &[f32; N], middle: i32) -> (f32, [u8; N]) {
    let value = extreme(x);
    if value.abs() < NEARLY_ZERO {
        return (0.0, [0; N]);
    }
    let round = |v: f32| nearest_int(v).clamp(-middle, middle - 1);
    let inverse = -(middle as f32) / value;
    let w = map(x, |x| x * x);
    let mut codes = map(x, |x| round(inverse * x));
    let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
    for i in 0..N {
        let l = codes[i] as f32;
        sum_xl += w[i] * x[i] * l;
        sum_l2 += w[i] * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let l = codes[i] as f32;
            let mut trial_xl = sum_xl - w[i] * x[i] * l;
            if trial_xl > 0.0 {
                let mut trial_l2 = sum_l2 - w[i] * l * l;
                let code = round(x[i] * trial_l2 / trial_xl);
                if code != codes[i] {
                    let l = code as f32;
                    trial_xl += w[i] * x[i] * l;
                    trial_l2 += w[i] * l * l;
                    if trial_l2 > 0.0 && trial_xl * trial_xl * sum_l2 > sum_xl * sum_xl * trial_l2 {
                        codes[i] = code;
                        (sum_xl, sum_l2) = (trial_xl, trial_l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    let scale = if sum_l2 > 0.0 { sum_xl / sum_l2 } else { 0.0 };
    (scale, codes.map(|code| (code + middle) as u8))
}
