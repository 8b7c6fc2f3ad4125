//! Root mean square, layer and Euclidean norms.

use super::NormOp;
use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::weight::Weight;
use crate::simd::{Kernel, Simd};

impl NormOp for Cpu {
    fn rms_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let len = n * w.n_cols;
        let (x, out) = (&x[..len], &mut out[..len]);
        let weight = w.to_f32();
        let dim = w.n_cols;
        let tasks = x.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
        self.run(2 * x.len(), tasks.enumerate(), |(row, (x, out))| RmsNorm {
            x,
            weight: &weight[row % w.n_rows * dim..][..dim],
            eps,
            out,
        });
    }

    fn layer_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let dim = w.n_cols;
        let (x, out) = (&x[..n * dim], &mut out[..n * dim]);
        let (weight, ones) = (w.to_f32(), vec![1.0; dim]);
        let tasks = x.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
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
        let tasks = x.chunks_exact_mut(dim);
        self.run(work, tasks, |x| L2Norm { x, eps });
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mean = simd.dot(self.x, self.x) / self.x.len() as f32;
        let scale = 1.0 / (mean + self.eps).sqrt();
        for ((out, &x), &w) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * scale * w;
        }
    }
}

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
        let dim = self.x.len() as f32;
        let mean = simd.dot(self.x, self.ones) / dim;
        for (out, &x) in self.out.iter_mut().zip(self.x) {
            *out = x - mean;
        }
        let variance = simd.dot(self.out, self.out) / dim;
        let scale = 1.0 / (variance + self.eps).sqrt();
        for (out, &w) in self.out.iter_mut().zip(self.weight) {
            *out = *out * scale * w;
        }
    }
}

struct L2Norm<'a> {
    x: &'a mut [f32],
    eps: f32,
}

impl Kernel for L2Norm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = 1.0 / (simd.dot(self.x, self.x) + self.eps).sqrt();
        for x in self.x {
            *x *= scale;
        }
    }
}
