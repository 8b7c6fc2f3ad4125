//! The searches for scales: each tries several, keeps the one of least weighted error, and does
//! every step in the order of ggml's search of that name, because another order rounds otherwise.

use super::float::{extreme, nearest_int};

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
}

/// `x = scale * code - min`.
pub(super) struct Affine<const N: usize> {
    pub(super) scale: f32,
    pub(super) min: f32,
    pub(super) codes: [u8; N],
}

/// Scale and minimum of least error under the weights `w`: `make_qkx2_quants` and
/// `make_qkx3_quants` of ggml. For each candidate spread it rounds the codes and then solves for
/// the best line through them.
#[inline(always)]
pub(super) fn fit_affine<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    search: &AffineSearch,
) -> Affine<N> {
    let (mut lo, mut hi) = (x[0], x[0]);
    let mut sum_w = w[0];
    let mut sum_x = w[0] * x[0];
    for i in 1..N {
        if x[i] < lo {
            lo = x[i];
        }
        if x[i] > hi {
            hi = x[i];
        }
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    if lo > 0.0 {
        lo = 0.0;
    }
    if hi <= lo {
        return Affine {
            scale: 0.0,
            min: -lo,
            codes: [0; N],
        };
    }

    let max_code = f32::from(search.max_code);
    let round = |v: f32| nearest_int(v).clamp(0, i32::from(search.max_code)) as u8;
    let weighted_error = |codes: &[u8; N], scale: f32, offset: f32| {
        let mut sum = 0.0;
        for i in 0..N {
            let t = scale * f32::from(codes[i]) + offset - x[i];
            sum += w[i]
                * match search.error {
                    ErrorNorm::Absolute => t.abs(),
                    ErrorNorm::Squared => t * t,
                };
        }
        sum
    };

    let inverse = max_code / (hi - lo);
    let mut scale = 1.0 / inverse;
    let mut codes = x.map(|x| round(inverse * (x - lo)));
    let mut best = weighted_error(&codes, scale, lo);
    for step in 0..=search.n_steps {
        let shift = search.first_shift + search.shift_step * f32::from(step);
        let inverse = (shift + max_code) / (hi - lo);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        let mut trial = [0; N];
        for i in 0..N {
            let v = inverse * (x[i] - lo);
            trial[i] = match search.clamp {
                Clamp::Rounded => round(v),
                Clamp::Unrounded if v > 0.0 => {
                    nearest_int(if v < max_code { v } else { max_code }) as u8
                }
                Clamp::Unrounded => 0,
            };
            let l = f32::from(trial[i]);
            sum_l += w[i] * l;
            sum_l2 += w[i] * l * l;
            sum_xl += w[i] * l * x[i];
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut trial_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut trial_lo = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if trial_lo > 0.0 {
                trial_lo = 0.0;
                trial_scale = sum_xl / sum_l2;
            }
            let error = weighted_error(&trial, trial_scale, trial_lo);
            if error < best {
                (codes, best, scale, lo) = (trial, error, trial_scale, trial_lo);
            }
        }
    }
    Affine {
        scale,
        min: -lo,
        codes,
    }
}

/// `x = scale * (code - middle)`.
pub(super) struct Symmetric<const N: usize> {
    pub(super) scale: f32,
    pub(super) codes: [u8; N],
}

/// Scale of least squared error under the weights `w`, codes `0..2 * middle`: `make_qx_quants`
/// of ggml. A block of zeros has scale 0 and codes 0.
#[inline(always)]
pub(super) fn fit_symmetric<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    middle: i32,
) -> Symmetric<N> {
    let value = extreme(x);
    if value.abs() < NEARLY_ZERO {
        return Symmetric {
            scale: 0.0,
            codes: [0; N],
        };
    }
    let round = |inverse: f32| {
        let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
        let mut codes = [0; N];
        for i in 0..N {
            let l = nearest_int(inverse * x[i]).clamp(-middle, middle - 1);
            codes[i] = (l + middle) as u8;
            let l = l as f32;
            sum_xl += w[i] * x[i] * l;
            sum_l2 += w[i] * l * l;
        }
        (sum_xl, sum_l2, codes)
    };
    let (sum_xl, sum_l2, mut codes) = round(-(middle as f32) / value);
    let mut scale = if sum_l2 != 0.0 { sum_xl / sum_l2 } else { 0.0 };
    let mut best = scale * sum_xl;
    for step in (-9..=9).filter(|&step| step != 0) {
        let (sum_xl, sum_l2, trial) = round(-(middle as f32 + 0.1 * step as f32) / value);
        if sum_l2 > 0.0 && sum_xl * sum_xl > best * sum_l2 {
            codes = trial;
            scale = sum_xl / sum_l2;
            best = scale * sum_xl;
        }
    }
    Symmetric { scale, codes }
}

/// Codes `0..=max_code` for numbers that are not negative (the scales of sub-blocks), and their
/// common scale: `make_qp_quants` of ggml.
pub(super) fn fit_positive<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    max_code: u8,
) -> (f32, [u8; N]) {
    let max = x.iter().fold(0.0, |max, &v| if v > max { v } else { max });
    if max < NEARLY_ZERO {
        return (0.0, [0; N]);
    }
    let limit = i32::from(max_code);
    let weighted_error = |scale: f32, code: &dyn Fn(f32) -> i32| {
        let mut sum = 0.0;
        for i in 0..N {
            let t = x[i] - scale * code(x[i]) as f32;
            sum += w[i] * t * t;
        }
        sum
    };
    let mut inverse = limit as f32 / max;
    let mut best = weighted_error(1.0 / inverse, &|x| nearest_int(inverse * x));
    for step in (-4..=4).filter(|&step| step != 0) {
        let trial = (0.1 * step as f32 + limit as f32) / max;
        let error = weighted_error(1.0 / trial, &|x| nearest_int(trial * x).min(limit));
        if error < best {
            best = error;
            inverse = trial;
        }
    }

    let mut codes = x.map(|x| nearest_int(inverse * x).min(limit));
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
