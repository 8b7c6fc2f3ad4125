//! Distributions over tokens, given as the logits of one position. Sums are in double precision, of exponentials in
//! single precision, and have the same bits on every CPU.

use crate::cpu::math::exp;
use crate::simd::dispatch::{Implementation, implementations};
use crate::simd::{KernelInto, LANES, Simd};

/// Returns the logarithm of the sum of exponentials, which is subtracted from logits to get log-probabilities.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    log_sum_exp_on(implementations()[0], logits)
}

/// Returns the Kullback-Leibler divergence of a distribution from `base`, in nats. Each is a row of logits and its
/// [`log_sum_exp`]. Tokens whose log-probability in the base is `least` or lower do not count.
///
/// # Panics
/// The rows have different lengths.
pub fn divergence(base: (&[f32], f64), other: (&[f32], f64), least: f64) -> f64 {
    divergence_on(implementations()[0], base, other, least)
}

/// Returns the probability that two distributions share, `sum(min(p, q))`. Each is a row of logits and its
/// [`log_sum_exp`].
///
/// # Panics
/// The rows have different lengths.
pub fn overlap(a: (&[f32], f64), b: (&[f32], f64)) -> f64 {
    overlap_on(implementations()[0], a, b)
}

fn log_sum_exp_on(on: Implementation, logits: &[f32]) -> f64 {
    let mut largest = f32::NEG_INFINITY;
    on.run_into(Largest(logits), &mut largest);
    let term = |x: f32, _: f32| f64::from(exp(x - largest));
    sum(on, logits, logits, term).ln() + f64::from(largest)
}

fn divergence_on(
    on: Implementation,
    (base, base_sum): (&[f32], f64),
    (other, other_sum): (&[f32], f64),
    least: f64,
) -> f64 {
    sum(on, base, other, |p: f32, q: f32| {
        let log = f64::from(p) - base_sum;
        let term = f64::from(exp(log as f32)) * (log - (f64::from(q) - other_sum));
        if log > least { term } else { 0.0 }
    })
}

fn overlap_on(on: Implementation, (a, a_sum): (&[f32], f64), (b, b_sum): (&[f32], f64)) -> f64 {
    sum(on, a, b, |p: f32, q: f32| {
        let log = (f64::from(p) - a_sum).min(f64::from(q) - b_sum);
        f64::from(exp(log as f32))
    })
}

/// Returns the sum of the terms of two rows of the same length.
fn sum<F: Fn(f32, f32) -> f64>(on: Implementation, a: &[f32], b: &[f32], term: F) -> f64 {
    assert_eq!(a.len(), b.len(), "rows of the same length");
    let mut sum = 0.0;
    on.run_into(Sum { a, b, term }, &mut sum);
    sum
}

/// The largest logit. NaN does not count.
struct Largest<'a>(&'a [f32]);

impl KernelInto<f32> for Largest<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S, out: &mut f32) {
        let (chunks, rest) = self.0.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = if x > *lane { x } else { *lane };
            }
        }
        *out = lanes.iter().chain(rest).copied().fold(*out, f32::max);
    }
}

/// A sum of terms: lane `l` adds terms `l`, `l + 32`, ..., then the lanes are added in order, and the last terms.
struct Sum<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    term: F,
}

impl<F: Fn(f32, f32) -> f64> KernelInto<f64> for Sum<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S, out: &mut f64) {
        let (a, a_rest) = self.a.as_chunks::<LANES>();
        let (b, b_rest) = self.b.as_chunks::<LANES>();
        let mut lanes = [0.0; LANES];
        for (a, b) in a.iter().zip(b) {
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane += (self.term)(a[i], b[i]);
            }
        }
        let rest = a_rest.iter().zip(b_rest).map(|(&a, &b)| (self.term)(a, b));
        *out = lanes.into_iter().chain(rest).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits from about -20 to 20, one of them far below.
    fn row(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 * 40.0 - 20.0
        };
        let mut row: Vec<f32> = (0..n).map(|_| next()).collect();
        row[n / 2] = -200.0;
        row
    }

    fn exact_log_sum(row: &[f32]) -> f64 {
        row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln()
    }

    fn close(found: f64, expected: f64) {
        let difference = (found - expected).abs();
        assert!(
            difference <= 1e-6 * expected.abs().max(1e-3),
            "{found} {expected}"
        );
    }

    #[test]
    fn sums_follow_their_formulas() {
        for n in [1, 31, 32, 33, 1000] {
            let (a, b) = (row(n, 1), row(n, 2));
            let (a_sum, b_sum) = (log_sum_exp(&a), log_sum_exp(&b));
            close(a_sum, exact_log_sum(&a));
            let logs = a.iter().zip(&b).map(|(&p, &q)| {
                (
                    f64::from(p) - exact_log_sum(&a),
                    f64::from(q) - exact_log_sum(&b),
                )
            });
            let logs: Vec<(f64, f64)> = logs.collect();
            let counted = logs.iter().filter(|(p, _)| *p > -16.0);
            let expected: f64 = counted.map(|(p, q)| p.exp() * (p - q)).sum();
            close(divergence((&a, a_sum), (&b, b_sum), -16.0), expected);
            let expected: f64 = logs.iter().map(|(p, q)| p.min(*q).exp()).sum();
            close(overlap((&a, a_sum), (&b, b_sum)), expected);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let (a, b) = (row(1003, 3), row(1003, 4));
        let sums = |on: Implementation| {
            let (a, b) = (
                (&a[..], log_sum_exp_on(on, &a)),
                (&b[..], log_sum_exp_on(on, &b)),
            );
            let divergence = divergence_on(on, a, b, -16.0);
            [a.1, b.1, divergence, overlap_on(on, a, b)].map(f64::to_bits)
        };
        let list = implementations();
        let best = sums(list[0]);
        assert!(list.into_iter().all(|on| sums(on) == best));
    }

    #[test]
    fn impossible_and_undefined_logits() {
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY, 0.0]), 0.0);
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_nan());
        let possible = [0.0, f32::NEG_INFINITY];
        assert_eq!(divergence((&possible, 0.0), (&possible, 0.0), -16.0), 0.0);
    }
}
