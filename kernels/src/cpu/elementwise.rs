//! Element-wise operations.

use super::Cpu;
use super::math::{gelu, sigmoid, silu, tanh};
use super::weight::Weight;
use crate::simd::{Kernel, Simd};

/// Work per task, in multiply-adds.
const TASK_WORK: usize = 1 << 15;

/// [`Backend::add`](crate::backend::Backend::add).
pub(super) fn add(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    for_each(cpu, x, y, 1, |x, y| x + y);
}

/// [`Backend::add_bias`](crate::backend::Backend::add_bias).
pub(super) fn add_bias(cpu: &Cpu, x: &mut [f32], bias: &Weight) {
    let bias = bias.to_f32();
    for row in x.chunks_exact_mut(bias.len()) {
        add(cpu, row, &bias);
    }
}

/// [`Backend::silu_mul`](crate::backend::Backend::silu_mul).
pub(super) fn silu_mul(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    for_each(cpu, x, y, EXP_WORK, |x, y| silu(x) * y);
}

/// [`Backend::gelu_mul`](crate::backend::Backend::gelu_mul).
pub(super) fn gelu_mul(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    for_each(cpu, x, y, EXP_WORK, |x, y| gelu(x) * y);
}

/// [`Backend::clamped_silu_mul`](crate::backend::Backend::clamped_silu_mul).
pub(super) fn clamped_silu_mul(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    for_each(cpu, x, y, EXP_WORK, |x, y| {
        let x = x.min(CLAMP);
        x * sigmoid(SLOPE * x) * (y.clamp(-CLAMP, CLAMP) + 1.0)
    });
}

/// Upper limit of the gate's input.
const CLAMP: f32 = 7.0;
/// Factor on the input of the gate's sigmoid.
const SLOPE: f32 = 1.702;

/// [`Backend::scale`](crate::backend::Backend::scale).
pub(super) fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// [`Backend::softcap`](crate::backend::Backend::softcap).
pub(super) fn softcap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
}

/// [`Backend::sigmoid_mul`](crate::backend::Backend::sigmoid_mul).
pub(super) fn sigmoid_mul(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    for_each(cpu, x, y, EXP_WORK, |x, y| x * sigmoid(y));
}

/// [`Backend::sigmoid_mul_rows`](crate::backend::Backend::sigmoid_mul_rows).
pub(super) fn sigmoid_mul_rows(cpu: &Cpu, x: &mut [f32], gate: &[f32], dim: usize) {
    let work = x.len();
    let tasks = x.chunks_exact_mut(dim).zip(gate);
    cpu.run(work, tasks, |(row, &gate)| ScaleRow {
        row,
        factor: sigmoid(gate),
    });
}

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

/// Approximate cost of an exponential, in multiply-adds.
pub(super) const EXP_WORK: usize = 16;

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
