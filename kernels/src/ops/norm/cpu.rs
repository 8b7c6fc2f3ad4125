//! Root mean square, layer and Euclidean norms.

use super::NormOp;
use crate::cpu::buffer::Buffer;
use crate::cpu::weight::Weight;
use crate::cpu::{Cpu, rows_per_task};
use crate::simd::{Kernel, Simd};

impl NormOp for Cpu {
    fn rms_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let len = n * w.n_cols;
        let (x, out) = (&x[..len], &mut out[..len]);
        let weight = w.to_f32();
        let dim = w.n_cols;
        let n_row = rows_per_task(2 * dim);
        let tasks = x.chunks(n_row * dim).zip(out.chunks_mut(n_row * dim));
        self.run(2 * x.len(), tasks.enumerate(), |(task, (x, out))| RmsNorm {
            x,
            first: task * n_row,
            weight: &weight,
            dim,
            eps,
            out,
        });
    }

    fn layer_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let dim = w.n_cols;
        let (x, out) = (&x[..n * dim], &mut out[..n * dim]);
        let (weight, ones) = (w.to_f32(), vec![1.0; dim]);
        let len = rows_per_task(4 * dim) * dim;
        let tasks = x.chunks(len).zip(out.chunks_mut(len));
        self.run(4 * x.len(), tasks, |(x, out)| LayerNorm {
            x,
            weight: &weight,
            ones: &ones,
            eps,
            out,
        });
    }

    fn l2_norm(&self, x: &mut Buffer, eps: f32, dim: usize, n: usize) {
        let x = &mut x[..n * dim];
        let work = 2 * x.len();
        let tasks = x.chunks_mut(rows_per_task(2 * dim) * dim);
        self.run(work, tasks, |x| L2Norm { x, dim, eps });
    }
}

/// Norms of some rows.
struct RmsNorm<'a> {
    x: &'a [f32],
    /// Number of the first row. Rows use the rows of `weight` in turn.
    first: usize,
    weight: &'a [f32],
    dim: usize,
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let weights = self.weight.chunks_exact(self.dim);
        let weights = weights.clone().cycle().skip(self.first % weights.len());
        let rows = self.x.chunks_exact(self.dim);
        let rows = rows.zip(self.out.chunks_exact_mut(self.dim));
        for ((x, out), weight) in rows.zip(weights) {
            let mean = simd.dot(x, x) / x.len() as f32;
            let scale = 1.0 / (mean + self.eps).sqrt();
            for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * w;
            }
        }
    }
}

/// Norms of some rows.
struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    /// As many ones as there are elements.
    ones: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for LayerNorm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let dim = self.ones.len();
        let rows = self.x.chunks_exact(dim);
        for (x, out) in rows.zip(self.out.chunks_exact_mut(dim)) {
            let mean = simd.dot(x, self.ones) / dim as f32;
            for (out, &x) in out.iter_mut().zip(x) {
                *out = x - mean;
            }
            let variance = simd.dot(out, out) / dim as f32;
            let scale = 1.0 / (variance + self.eps).sqrt();
            for (out, &w) in out.iter_mut().zip(self.weight) {
                *out = *out * scale * w;
            }
        }
    }
}

/// Norms of some rows.
struct L2Norm<'a> {
    x: &'a mut [f32],
    dim: usize,
    eps: f32,
}

impl Kernel for L2Norm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row in self.x.chunks_exact_mut(self.dim) {
            let scale = 1.0 / (simd.dot(row, row) + self.eps).sqrt();
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
}
