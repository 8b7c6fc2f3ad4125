//! Hyper-connections.

use super::HyperConnectionOp;
use crate::backend::StreamShape;
use crate::cpu::Cpu;
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::{exp, sigmoid};
use crate::cpu::weight::Weight;
use crate::simd::{Kernel, Simd};

impl HyperConnectionOp for Cpu {
    fn stream_weights(
        &self,
        shape: &StreamShape,
        mixes: &Buffer,
        scale: &Weight,
        base: &Weight,
        n: usize,
        out: &mut Buffer,
    ) {
        let len = n * shape.n_weight;
        let (scale, base) = (scale.to_f32(), base.to_f32());
        let rows = mixes[..len].chunks_exact(shape.n_weight);
        let tasks = rows.zip(out[..len].chunks_exact_mut(shape.n_weight));
        let work = len * (16 + 2 * shape.n_iteration);
        self.run(work, tasks, |(mixes, out)| Weights {
            shape,
            mixes,
            scale: &scale,
            base: &base,
            out,
        });
    }

    fn gather_streams(
        &self,
        shape: &StreamShape,
        x: &Buffer,
        weights: &Buffer,
        n: usize,
        out: &mut Buffer,
    ) {
        let rows = x[..n * shape.n_stream * shape.dim].chunks_exact(shape.n_stream * shape.dim);
        let weights = weights[..n * shape.n_weight].chunks_exact(shape.n_weight);
        let tasks = rows.zip(weights).zip(out.chunks_exact_mut(shape.dim));
        let work = n * shape.n_stream * shape.dim;
        self.run(work, tasks, |((x, weights), out)| Gather {
            x,
            weights,
            out,
        });
    }

    fn scatter_streams(
        &self,
        shape: &StreamShape,
        x: &mut Buffer,
        output: &Buffer,
        weights: &Buffer,
        n: usize,
    ) {
        let width = shape.n_stream * shape.dim;
        let rows = x[..n * width].chunks_exact_mut(width);
        let weights = weights[..n * shape.n_weight].chunks_exact(shape.n_weight);
        let tasks = rows.zip(weights).zip(output.chunks_exact(shape.dim));
        let work = n * width * (1 + shape.n_stream);
        self.run(work, tasks, |((x, weights), output)| Scatter {
            n_stream: shape.n_stream,
            x,
            weights,
            output,
        });
    }
}

/// Computes one row of weights.
struct Weights<'a> {
    shape: &'a StreamShape,
    mixes: &'a [f32],
    scale: &'a [f32],
    base: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Weights<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let StreamShape {
            n_stream: n,
            eps,
            n_iteration,
            ..
        } = *self.shape;
        for (i, out) in self.out.iter_mut().enumerate() {
            let kind = (i / n).min(2);
            let value = self.mixes[i] * self.scale[kind] + self.base[i];
            *out = match kind {
                0 => sigmoid(value) + eps,
                1 => 2.0 * sigmoid(value),
                _ => value,
            };
        }
        if !self.shape.is_connection() {
            return;
        }
        let matrix = &mut self.out[2 * n..];
        for row in matrix.chunks_exact_mut(n) {
            let largest = row.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            row.iter_mut().for_each(|x| *x = exp(*x - largest));
            let sum = sum(row.iter());
            row.iter_mut().for_each(|x| *x = *x / sum + eps);
        }
        for iteration in 0..n_iteration.max(1) {
            if iteration > 0 {
                for row in matrix.chunks_exact_mut(n) {
                    let sum = sum(row.iter()) + eps;
                    row.iter_mut().for_each(|x| *x /= sum);
                }
            }
            for column in 0..n {
                let sum = sum(matrix[column..].iter().step_by(n)) + eps;
                let column = matrix[column..].iter_mut().step_by(n);
                column.for_each(|x| *x /= sum);
            }
        }
    }
}

/// Adds numbers in order.
#[inline(always)]
fn sum<'a>(values: impl Iterator<Item = &'a f32>) -> f32 {
    values.fold(0.0, |sum, x| sum + x)
}

/// Sums the streams of one row.
struct Gather<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        self.out.fill(0.0);
        for (x, &weight) in self.x.chunks_exact(self.out.len()).zip(self.weights) {
            for (out, &x) in self.out.iter_mut().zip(x) {
                *out += weight * x;
            }
        }
    }
}

/// Replaces the streams of one row.
struct Scatter<'a> {
    n_stream: usize,
    x: &'a mut [f32],
    weights: &'a [f32],
    output: &'a [f32],
}

impl Kernel for Scatter<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let (n, dim) = (self.n_stream, self.output.len());
        let (factors, matrix) = self.weights[n..].split_at(n);
        let arena = Arena::new();
        let before = arena.alloc_slice_copy(self.x);
        for (to, out) in self.x.chunks_exact_mut(dim).enumerate() {
            for (out, &y) in out.iter_mut().zip(self.output) {
                *out = y * factors[to];
            }
            for (from, x) in before.chunks_exact(dim).enumerate() {
                let factor = matrix[from * n + to];
                for (out, &x) in out.iter_mut().zip(x) {
                    *out += x * factor;
                }
            }
        }
    }
}
