//! Element-wise operations.

use super::ElementwiseOp;
use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::{gelu, sigmoid, silu, tanh};
use crate::cpu::weight::Weight;
use crate::simd::{Kernel, Simd};

impl ElementwiseOp for Cpu {
    fn add(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        for_each(self, &mut x[..len], &y[..len], 1, |x, y| x + y);
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Weight, n: usize) {
        let elements = bias.to_f32();
        for row in x[..n * bias.n_cols].chunks_exact_mut(bias.n_cols) {
            for_each(self, row, &elements, 1, |x, y| x + y);
        }
    }

    fn silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        for_each(self, &mut x[..len], &y[..len], EXP_WORK, |x, y| silu(x) * y);
    }

    fn gelu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        for_each(self, &mut x[..len], &y[..len], EXP_WORK, |x, y| gelu(x) * y);
    }

    fn clamped_silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        for_each(self, &mut x[..len], &y[..len], EXP_WORK, |x, y| {
            let x = x.min(CLAMP);
            x * sigmoid(SLOPE * x) * (y.clamp(-CLAMP, CLAMP) + 1.0)
        });
    }

    fn relu_squared(&self, x: &mut Buffer, len: usize) {
        let tasks = x[..len].chunks_mut(TASK_WORK);
        self.run(len, tasks, |x| ReluSquared { x });
    }

    fn scale(&self, x: &mut Buffer, factor: f32, len: usize) {
        x[..len].iter_mut().for_each(|x| *x *= factor);
    }

    fn softcap(&self, x: &mut Buffer, cap: f32, len: usize) {
        x[..len].iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
    }

    fn sigmoid_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        for_each(self, &mut x[..len], &y[..len], EXP_WORK, |x, y| {
            x * sigmoid(y)
        });
    }

    fn sigmoid_mul_rows(&self, x: &mut Buffer, gate: &Buffer, dim: usize, n: usize) {
        let tasks = x[..n * dim].chunks_exact_mut(dim).zip(&gate[..n]);
        self.run(n * dim, tasks, |(row, &gate)| ScaleRow {
            row,
            factor: sigmoid(gate),
        });
    }
}

/// Work per task, in multiply-adds.
const TASK_WORK: usize = 1 << 15;

/// Upper limit of the gate's input.
const CLAMP: f32 = 7.0;
/// Factor on the input of the gate's sigmoid.
const SLOPE: f32 = 1.702;

struct ScaleRow<'a> {
    row: &'a mut [f32],
    factor: f32,
}

impl Kernel for ScaleRow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        self.row.iter_mut().for_each(|x| *x *= self.factor);
    }
}

struct ReluSquared<'a> {
    x: &'a mut [f32],
}

impl Kernel for ReluSquared<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for x in self.x {
            // NaN stays NaN.
            let positive = if *x < 0.0 { 0.0 } else { *x };
            *x = positive * positive;
        }
    }
}

/// Approximate cost of an exponential, in multiply-adds.
pub(crate) const EXP_WORK: usize = 16;

fn for_each<F>(cpu: &Cpu, x: &mut [f32], y: &[f32], work: usize, f: F)
where
    F: Fn(f32, f32) -> f32 + Copy + Sync,
{
    let part = TASK_WORK / work;
    let work = x.len() * work;
    let tasks = x.chunks_mut(part).zip(y.chunks(part));
    cpu.run(work, tasks, |(x, y)| ForEach { x, y, f });
}

struct ForEach<'a, F> {
    x: &'a mut [f32],
    y: &'a [f32],
    f: F,
}

impl<F: Fn(f32, f32) -> f32> Kernel for ForEach<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (x, &y) in self.x.iter_mut().zip(self.y) {
            *x = (self.f)(*x, y);
        }
    }
}
