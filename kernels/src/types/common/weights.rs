//! Weights of the elements' errors in a fit.

use crate::simd::lanes::{Lanes, MAX_LANES, transpose};

/// Blocks with magnitudes below this count as zero.
pub(crate) const NEARLY_ZERO: f32 = 1e-15;

/// Weights for blocks of `N` elements.
#[derive(Clone, Copy)]
pub(crate) enum Weights<'a, const N: usize> {
    /// `x^2`.
    Squares,
    /// `|x|`.
    Magnitudes,
    /// `|x|` plus the root mean square of the block.
    RmsPlusMagnitude,
    /// Explicit weights for the blocks of a row, the same for every row.
    Given(&'a [[f32; N]]),
    /// `q * sqrt(sigma2 + x^2)`, with `q` the importance of the column (one row, the same for all).
    Importance {
        columns: &'a [[f32; N]],
        /// One value per `per` blocks.
        sigma2: &'a [f32],
        per: usize,
    },
}

impl<const N: usize> Weights<'_, N> {
    /// Returns the weights of `len` blocks `x`, at most `V::N`; the first has index `first`.
    #[inline(always)]
    pub(crate) fn of<V: Lanes>(self, x: &[V; N], first: usize, len: usize) -> [V; N] {
        let mut w = *x;
        match self {
            Weights::Squares => {
                for (w, &x) in w.iter_mut().zip(x) {
                    *w = x * x;
                }
            }
            Weights::Magnitudes => {
                for (w, x) in w.iter_mut().zip(x) {
                    *w = x.abs();
                }
            }
            Weights::RmsPlusMagnitude => {
                let mut energy = V::splat(0.0);
                for &x in x {
                    energy = energy + x * x;
                }
                let mean = (energy / V::splat(N as f32)).sqrt();
                for (w, x) in w.iter_mut().zip(x) {
                    *w = mean + x.abs();
                }
            }
            Weights::Given(row) => w = repeated(row, first, len),
            Weights::Importance {
                columns,
                sigma2,
                per,
            } => {
                let mut sums = [0.0; MAX_LANES];
                for (k, sum) in sums.iter_mut().enumerate().take(len) {
                    *sum = sigma2[(first + k) / per];
                }
                let sigma2 = V::load(&sums);
                w = repeated(columns, first, len);
                for (w, &x) in w.iter_mut().zip(x) {
                    *w = *w * (sigma2 + x * x).sqrt();
                }
            }
        }
        w
    }
}

/// Returns blocks `first..first + len` of a row that is repeated cyclically.
#[inline(always)]
fn repeated<V: Lanes, const N: usize>(row: &[[f32; N]], first: usize, len: usize) -> [V; N] {
    let start = first % row.len();
    if let Some(blocks) = row.get(start..start + len) {
        return transpose(blocks);
    }
    let mut blocks = [[0.0; N]; MAX_LANES];
    for (k, block) in blocks.iter_mut().enumerate().take(len) {
        *block = row[(start + k) % row.len()];
    }
    transpose(&blocks)
}
