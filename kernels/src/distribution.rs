//! Distributions over tokens. Sums are in double precision, of exponentials in single precision, and have the same bits
//! on every CPU.

use crate::cpu::math::exp;
use crate::simd::dispatch::{Implementation, chosen};
use crate::simd::{KernelInto, LANES, Simd};

/// The distribution over the token of one position.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    /// Logit of each token.
    pub logits: &'a [f32],
    /// The logarithm of the sum of exponentials, which is subtracted from a logit to get a log-probability.
    pub log_sum: f64,
}

impl<'a> Distribution<'a> {
    /// Returns the distribution of a row of logits.
    pub fn of(logits: &'a [f32]) -> Distribution<'a> {
        Distribution::on(chosen(), logits)
    }

    fn on(on: Implementation, logits: &'a [f32]) -> Distribution<'a> {
        let mut largest = f32::NEG_INFINITY;
        on.run_into(Largest(logits), &mut largest);
        let term = |x: f32, _: f32| f64::from(exp(x - largest));
        Distribution {
            logits,
            log_sum: sum(on, logits, logits, term).ln() + f64::from(largest),
        }
    }

    /// Returns the negative log-probability of a token, in nats.
    pub fn surprise(&self, token: u32) -> f64 {
        self.log_sum - f64::from(self.logits[token as usize])
    }

    /// Returns the Kullback-Leibler divergence from a base, in nats. Tokens whose log-probability in the base is `least`
    /// or lower do not count.
    ///
    /// # Panics
    /// The rows have different lengths.
    pub fn divergence_from(&self, base: &Distribution<'_>, least: f64) -> f64 {
        self.divergence_on(chosen(), base, least)
    }

    fn divergence_on(&self, on: Implementation, base: &Distribution<'_>, least: f64) -> f64 {
        sum(on, base.logits, self.logits, |p: f32, q: f32| {
            let log = f64::from(p) - base.log_sum;
            let term = f64::from(exp(log as f32)) * (log - (f64::from(q) - self.log_sum));
            if log > least { term } else { 0.0 }
        })
    }

    /// Returns the probability that both distributions share: the sum of the smaller probability of each token.
    ///
    /// # Panics
    /// The rows have different lengths.
    pub fn overlap(&self, other: &Distribution<'_>) -> f64 {
        self.overlap_on(chosen(), other)
    }

    fn overlap_on(&self, on: Implementation, other: &Distribution<'_>) -> f64 {
        sum(on, self.logits, other.logits, |p: f32, q: f32| {
            let log = (f64::from(p) - self.log_sum).min(f64::from(q) - other.log_sum);
            f64::from(exp(log as f32))
        })
    }
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
    use crate::simd::dispatch::implementations;

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
            let (base_row, other_row) = (row(n, 1), row(n, 2));
            let (base, other) = (Distribution::of(&base_row), Distribution::of(&other_row));
            let (base_sum, other_sum) = (exact_log_sum(&base_row), exact_log_sum(&other_row));
            close(base.log_sum, base_sum);
            let logits = base_row.iter().zip(&other_row);
            let logs: Vec<(f64, f64)> = logits
                .map(|(&p, &q)| (f64::from(p) - base_sum, f64::from(q) - other_sum))
                .collect();
            let counted = logs.iter().filter(|(p, _)| *p > -16.0);
            let expected: f64 = counted.map(|(p, q)| p.exp() * (p - q)).sum();
            close(other.divergence_from(&base, -16.0), expected);
            let expected: f64 = logs.iter().map(|(p, q)| p.min(*q).exp()).sum();
            close(base.overlap(&other), expected);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let (base, other) = (row(1003, 3), row(1003, 4));
        let sums = |on: Implementation| {
            let (base, other) = (Distribution::on(on, &base), Distribution::on(on, &other));
            let divergence = other.divergence_on(on, &base, -16.0);
            let overlap = base.overlap_on(on, &other);
            [base.log_sum, other.log_sum, divergence, overlap].map(f64::to_bits)
        };
        let list = implementations();
        let best = sums(list[0]);
        assert!(list.into_iter().all(|on| sums(on) == best));
    }

    #[test]
    fn impossible_and_undefined_logits() {
        let possible = Distribution::of(&[f32::NEG_INFINITY, 0.0]);
        assert_eq!(possible.log_sum, 0.0);
        assert_eq!(possible.divergence_from(&possible, -16.0), 0.0);
        assert!(Distribution::of(&[0.0, f32::NAN]).log_sum.is_nan());
    }
}
