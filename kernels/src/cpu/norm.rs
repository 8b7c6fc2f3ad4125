//! Root mean square and Euclidean norms.

use super::Cpu;
use super::weight::Weight;
use crate::simd::{Kernel, Simd};

/// [`Backend::rms_norm`](crate::backend::Backend::rms_norm).
pub(super) fn rms_norm(cpu: &Cpu, x: &[f32], w: &Weight, eps: f32, out: &mut [f32]) {
    let weight = w.to_f32();
    let dim = w.n_cols;
    let tasks = x.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
    cpu.run(2 * x.len(), tasks, |(x, out)| RmsNorm {
        x,
        weight: &weight,
        eps,
        out,
    });
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

/// [`Backend::l2_norm`](crate::backend::Backend::l2_norm).
pub(super) fn l2_norm(cpu: &Cpu, x: &mut [f32], eps: f32, dim: usize) {
    let work = 2 * x.len();
    let tasks = x.chunks_exact_mut(dim);
    cpu.run(work, tasks, |x| L2Norm { x, eps });
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
