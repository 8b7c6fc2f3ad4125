//! Root mean square, layer and Euclidean norms.

use std::mem::offset_of;

use bytemuck::NoUninit;

use super::NormOp;
use crate::cuda::activation::QuantizedInput;
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::{Buffer, Contents, Weight};
use crate::cuda::queue::{Ticket, Touched};
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count, kernel};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "norm",
    text: include_str!("norm.cu"),
    compiled_for: CompiledFor::Single,
};

impl NormOp for Cuda {
    fn rms_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let len = n * w.n_cols;
        let weight = w.numbers(self);
        let mut shared = self.shared();
        let sum = shared.sum.take().filter(|sum| {
            (sum.contents, sum.len) == (x.contents(), len) && self.queue.take_back(sum.ticket)
        });
        let args = RmsNorm {
            x: x.first(len),
            added: sum.map_or(Address::NONE, |sum| sum.added),
            weight,
            out: out.first_mut(len),
            quantized: QuantizedInput::NONE,
            n: count(n),
            dim: count(w.n_cols),
            eps,
            n_weight: count(w.n_rows),
        };
        let touched = Touched {
            reads: [args.x, args.added],
            writes: [args.x, args.out],
        };
        let kernel = kernel("norm", "rms_norm");
        // SAFETY: the arguments are the struct of the kernel; the buffers hold `n` rows of the length of the
        // weight's rows.
        let ticket = unsafe { self.launch_joined(kernel, grid(n, w.n_cols), &args, touched) };
        let at = offset_of!(RmsNorm, quantized);
        shared.quants.record_producer(ticket, at, out, n, w.n_cols);
    }

    fn layer_norm(&self, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
        let len = n * w.n_cols;
        let args = LayerNorm {
            x: x.first(len),
            weight: w.numbers(self),
            out: out.first_mut(len),
            dim: count(w.n_cols),
            eps,
        };
        // SAFETY: the arguments are the struct of the kernel; the buffers hold `n` rows of the length of the
        // weight.
        unsafe { self.launch(kernel("norm", "layer_norm"), grid(n, w.n_cols), &args) };
    }

    fn l2_norm(&self, x: &mut Buffer, eps: f32, dim: usize, n: usize) {
        let args = L2Norm {
            x: x.first_mut(n * dim),
            dim: count(dim),
            eps,
        };
        // SAFETY: the arguments are the struct of the kernel; the buffer holds `n` rows.
        unsafe { self.launch(kernel("norm", "l2_norm"), grid(n, dim), &args) };
    }
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct RmsNorm {
    x: Address,
    added: Address,
    weight: Address,
    out: Address,
    quantized: QuantizedInput,
    n: u32,
    dim: u32,
    eps: f32,
    /// Rows of the weight.
    n_weight: u32,
}

/// A queued addition that a norm of its result can perform in the same kernel.
pub(crate) struct Sum {
    pub(crate) ticket: Ticket,
    /// The result, and its number of elements.
    pub(crate) contents: Contents,
    pub(crate) len: usize,
    /// The summand.
    pub(crate) added: Address,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct LayerNorm {
    x: Address,
    weight: Address,
    out: Address,
    dim: u32,
    eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct L2Norm {
    x: Address,
    dim: u32,
    eps: f32,
}

/// One block per row of `dim` elements, with two elements per thread if they are few.
fn grid(n: usize, dim: usize) -> Grid {
    let threads = dim.div_ceil(2).next_multiple_of(32).clamp(32, 1024);
    Grid::new([count(n), 1, 1], count(threads))
}
