//! Fits a scale and a minimum: `make_qkx2_quants` and `make_qkx3_quants` of ggml. Every step is in ggml's
//! order, because another order rounds differently.
//!
//! Several blocks are fitted at once, one per lane. A branch of the scalar search becomes a select per
//! lane.

use super::weights::Weights;
use crate::float::map;
use crate::simd::lanes::{Lanes, Pair, transpose};

/// Parameters of [`fit_affine`].
#[derive(Clone, Copy)]
pub(crate) struct AffineSearch {
    /// Quants are `0..=max_code`.
    pub(crate) max_quant: u8,
    /// The first candidate spreads the range over `max_code + first_shift` steps.
    pub(crate) first_shift: f32,
    /// Increment from one candidate to the next.
    pub(crate) shift_step: f32,
    /// Candidates after the first.
    pub(crate) n_steps: u8,
    /// Error norm to minimise.
    pub(crate) error: ErrorNorm,
    /// Clamping of a candidate's quants.
    pub(crate) clamp: Clamp,
}

/// Error norm of one element.
#[derive(Clone, Copy)]
pub(crate) enum ErrorNorm {
    Absolute,
    Squared,
}

impl ErrorNorm {
    /// Sums the weighted errors of `scale * quant + offset`.
    #[inline(always)]
    fn sum<V: Lanes, const N: usize>(
        self,
        x: &[V; N],
        w: &[V; N],
        quants: &[V; N],
        scale: V,
        offset: V,
    ) -> V {
        let mut sum = V::splat(0.0);
        for i in 0..N {
            let t = scale * quants[i] + offset - x[i];
            let error = match self {
                ErrorNorm::Absolute => t.abs(),
                ErrorNorm::Squared => t * t,
            };
            sum = sum + w[i] * error;
        }
        sum
    }
}

/// Clamping of quants after rounding or before. The results differ only for numbers beyond 2^22, where
/// rounding wraps.
#[derive(Clone, Copy)]
pub(crate) enum Clamp {
    Rounded,
    Unrounded,
}

/// Magnitudes below this are rounded without wrapping.
const WRAP: f32 = (1 << 22) as f32;

impl AffineSearch {
    /// The search that every type uses with an importance matrix.
    pub(crate) const fn weighted(max_quant: u8) -> Self {
        AffineSearch {
            max_quant,
            first_shift: -0.9,
            shift_step: 0.05,
            n_steps: 36,
            error: ErrorNorm::Squared,
            clamp: Clamp::Unrounded,
        }
    }

    /// Quantizes numbers that lie `v` steps above the minimum.
    #[inline(always)]
    fn quants<V: Lanes>(&self, v: V, clamp: Clamp) -> V {
        match clamp {
            Clamp::Rounded => v.round_to_quant(0, i32::from(self.max_quant)),
            Clamp::Unrounded => v.round_within(0.0, f32::from(self.max_quant)),
        }
    }
}

/// The result of a fit: `x = scale * quant - min`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) min: f32,
    /// Sum of the weights.
    pub(crate) weight: f32,
    /// Steps per unit of `x`, counted from `origin`.
    inverse: f32,
    origin: f32,
}

impl Affine {
    /// Returns the quants of the fitted block.
    #[inline(always)]
    pub(crate) fn quants<const N: usize>(&self, x: &[f32; N], search: &AffineSearch) -> [u8; N] {
        map(x, |x| {
            search.quants(self.inverse * (x - self.origin), search.clamp) as u8
        })
    }
}

/// Returns the scale and minimum of least error for each block.
#[inline(always)]
pub(crate) fn fit_affine<V: Lanes, const N: usize>(
    x: &[[f32; N]],
    weights: Weights<'_, N>,
    search: &AffineSearch,
) -> Vec<Affine> {
    let mut fits = Vec::with_capacity(x.len());
    for (i, blocks) in x.chunks(Pair::<V>::N).enumerate() {
        let x = transpose::<Pair<V>, N>(blocks);
        let w = weights.of(&x, i * Pair::<V>::N, blocks.len());
        let mut fields = [[0.0; crate::simd::lanes::MAX_LANES]; 5];
        for (field, lanes) in fields.iter_mut().zip(fit(&x, &w, search)) {
            lanes.store(field);
        }
        let [scale, min, weight, inverse, origin] = fields;
        fits.extend((0..blocks.len()).map(|k| Affine {
            scale: scale[k],
            min: min[k],
            weight: weight[k],
            inverse: inverse[k],
            origin: origin[k],
        }));
    }
    fits
}

/// Sums over the quants `l` of a candidate.
struct Sums<V> {
    /// Sum of `w l`.
    l: V,
    /// Sum of `w l l`.
    l2: V,
    /// Sum of `w l x`.
    xl: V,
}

/// Rounds `inverse * (x - lo)` to `quants` and computes the sums.
#[inline(always)]
fn sums<V: Lanes, const N: usize>(
    x: &[V; N],
    w: &[V; N],
    (inverse, lo): (V, V),
    quants: &mut [V; N],
    search: &AffineSearch,
    clamp: Clamp,
) -> Sums<V> {
    let zero = V::splat(0.0);
    let (mut sum_l, mut sum_l2, mut sum_xl) = (zero, zero, zero);
    for i in 0..N {
        let l = search.quants(inverse * (x[i] - lo), clamp);
        quants[i] = l;
        let wl = w[i] * l;
        sum_l = sum_l + wl;
        sum_l2 = sum_l2 + wl * l;
        sum_xl = sum_xl + wl * x[i];
    }
    Sums {
        l: sum_l,
        l2: sum_l2,
        xl: sum_xl,
    }
}

/// Returns the fields of [`Affine`]. For each candidate step size, rounds to quants, then solves for the
/// least-squares line through them.
#[inline(always)]
fn fit<V: Lanes, const N: usize>(x: &[V; N], w: &[V; N], search: &AffineSearch) -> [V; 5] {
    let zero = V::splat(0.0);
    let (mut lo, mut hi) = (x[0], x[0]);
    let mut sum_w = w[0];
    let mut sum_x = w[0] * x[0];
    for i in 1..N {
        lo = x[i].min(lo);
        hi = x[i].max(hi);
        sum_w = sum_w + w[i];
        sum_x = sum_x + w[i] * x[i];
    }
    lo = zero.min(lo);
    let lowest = lo;
    // A block of equal numbers has quants of 0 and only a minimum.
    let is_flat = hi.eq(lowest);
    let flat_min = lowest * V::splat(-1.0);
    if V::all(is_flat) {
        return [zero, flat_min, sum_w, zero, zero];
    }

    let max_quant = f32::from(search.max_quant);
    let mut inverse = V::splat(max_quant) / (hi - lo);
    let mut origin = lo;
    let mut scale = V::splat(1.0) / inverse;
    let mut quants = [zero; N];
    for i in 0..N {
        quants[i] = search.quants(inverse * (x[i] - lo), Clamp::Rounded);
    }
    let mut best = search.error.sum(x, w, &quants, scale, lo);
    // If the range is so small that its inverse is infinite, these first quants are all 0.
    inverse = V::select(inverse.gt(V::splat(f32::MAX)), zero, inverse);

    for step in 0..=search.n_steps {
        let shift = search.first_shift + search.shift_step * f32::from(step);
        let trial_inverse = V::splat(shift + max_quant) / (hi - lo);
        // The distance of any number from the minimum is at most that of the ends of the range.
        let reach = (hi - lo).abs().max((lowest - lo).abs());
        let is_near = V::splat(WRAP).gt(trial_inverse.abs() * reach) | is_flat;
        let line = (trial_inverse, lo);
        let sum = match search.clamp {
            Clamp::Rounded if !V::all(is_near) => {
                sums(x, w, line, &mut quants, search, Clamp::Rounded)
            }
            _ => sums(x, w, line, &mut quants, search, Clamp::Unrounded),
        };
        let determinant = sum_w * sum.l2 - sum.l * sum.l;
        let trial_scale = (sum_w * sum.xl - sum_x * sum.l) / determinant;
        let trial_lo = (sum.l2 * sum_x - sum.l * sum.xl) / determinant;
        // The format has no minimum above 0; in that case, fit the best line through 0.
        let above = trial_lo.gt(zero);
        let trial_scale = V::select(above, sum.xl / sum.l2, trial_scale);
        let trial_lo = V::select(above, zero, trial_lo);
        let error = search.error.sum(x, w, &quants, trial_scale, trial_lo);
        let better = determinant.gt(zero) & best.gt(error);
        best = V::select(better, error, best);
        inverse = V::select(better, trial_inverse, inverse);
        origin = V::select(better, lo, origin);
        scale = V::select(better, trial_scale, scale);
        lo = V::select(better, trial_lo, lo);
    }
    [
        V::select(is_flat, zero, scale),
        V::select(is_flat, flat_min, lo * V::splat(-1.0)),
        sum_w,
        V::select(is_flat, zero, inverse),
        V::select(is_flat, zero, origin),
    ]
}
