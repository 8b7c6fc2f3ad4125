//! Element-wise operations.

use super::ElementwiseOp;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::{gelu, sigmoid, silu, tanh};
use crate::cpu::weight::Weight;
use crate::cpu::{Cpu, TASK_WORK, rows_per_task};
use crate::simd::{Kernel, Simd};

impl ElementwiseOp for Cpu {
    fn add(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        for_each(self, &mut x[..len], &y[..len], 1, |x, y| x + y);
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Weight, n: usize) {
        let dim = bias.n_cols;
        let x = &mut x[..n * dim];
        let bias = bias.to_f32();
        let work = x.len();
        let tasks = x.chunks_mut(rows_per_task(dim) * dim);
        self.run(work, tasks, |rows| AddBias { rows, bias: &bias });
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

    fn limited_silu_mul(&self, x: &mut Buffer, y: &Buffer, limit: f32, len: usize) {
        for_each(self, &mut x[..len], &y[..len], EXP_WORK, |x, y| {
            silu(x.min(limit)) * y.max(-limit).min(limit)
        });
    }

    fn relu_squared(&self, x: &mut Buffer, len: usize) {
        map(self, &mut x[..len], 1, |x| {
            // NaN stays NaN.
            let positive = if x < 0.0 { 0.0 } else { x };
            positive * positive
        });
    }

    fn scale(&self, x: &mut Buffer, factor: f32, len: usize) {
        map(self, &mut x[..len], 1, |x| x * factor);
    }

    fn softcap(&self, x: &mut Buffer, cap: f32, len: usize) {
        map(self, &mut x[..len], EXP_WORK, |x| cap * tanh(x / cap));
    }

    fn sigmoid_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        for_each(self, &mut x[..len], &y[..len], EXP_WORK, |x, y| {
            x * sigmoid(y)
        });
    }

    fn sigmoid_mul_rows(&self, x: &mut Buffer, gate: &Buffer, dim: usize, n: usize) {
        let n_row = rows_per_task(dim);
        let tasks = x[..n * dim].chunks_mut(n_row * dim);
        let tasks = tasks.zip(gate[..n].chunks(n_row));
        self.run(n * dim, tasks, |(rows, gate)| ScaleRows { rows, gate });
    }
}

/// Upper limit of the gate's input.
const CLAMP: f32 = 7.0;
/// Factor on the input of the gate's sigmoid.
const SLOPE: f32 = 1.702;

struct AddBias<'a> {
    rows: &'a mut [f32],
    bias: &'a [f32],
}

impl Kernel for AddBias<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for row in self.rows.chunks_exact_mut(self.bias.len()) {
            for (x, bias) in row.iter_mut().zip(self.bias) {
                *x += bias;
            }
        }
    }
}

struct ScaleRows<'a> {
    rows: &'a mut [f32],
    /// An element per row.
    gate: &'a [f32],
}

impl Kernel for ScaleRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let dim = self.rows.len() / self.gate.len();
        for (row, &gate) in self.rows.chunks_exact_mut(dim).zip(self.gate) {
            let factor = sigmoid(gate);
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// Approximate cost of an exponential, in multiply-adds.
pub(crate) const EXP_WORK: usize = 16;

/// Replaces each element by `f` of it, which takes `work` multiply-adds.
fn map(cpu: &Cpu, x: &mut [f32], work: usize, f: impl Fn(f32) -> f32 + Copy + Sync) {
    let n = x.len();
    let tasks = x.chunks_mut(TASK_WORK / work);
    cpu.run(n * work, tasks, |x| Map { x, f });
}

struct Map<'a, F> {
    x: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32) -> f32> Kernel for Map<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        self.x.iter_mut().for_each(|x| *x = (self.f)(*x));
    }
}

/// Replaces each `x` by `f` of it and `y`, which takes `work` multiply-adds.
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
