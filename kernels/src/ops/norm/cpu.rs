//! Root mean square and Euclidean norms.

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
        self.run(2 * x.len(), tasks, |(x, out)| RmsNorm {
            x,
            weight: &weight,
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
