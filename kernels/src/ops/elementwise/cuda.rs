//! Element-wise operations.

use std::mem::offset_of;

use bytemuck::NoUninit;

use super::ElementwiseOp;
use crate::cuda::activation::QuantizedInput;
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::{Buffer, Weight};
use crate::cuda::queue::Ticket;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, kernel};
use crate::ops::norm::cuda::Sum;

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "elementwise",
    text: include_str!("elementwise.cu"),
    compiled_for: CompiledFor::Single,
};

impl ElementwiseOp for Cuda {
    fn add(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        let mut shared = self.shared();
        let ticket = binary(self, "add", x, y, 0.0, len);
        shared.sum = ticket.map(|ticket| Sum {
            ticket,
            contents: x.contents(),
            len,
            added: y.first(len),
        });
    }

    fn add_bias(&self, x: &mut Buffer, bias: &Weight, n: usize) {
        let len = n * bias.n_cols;
        let args = Rows {
            x: x.first_mut(len),
            y: bias.numbers(self),
            len: len as u64,
            dim: bias.n_cols as u64,
        };
        let grid = Grid::elements(len, THREADS);
        // SAFETY: the arguments are the struct of the kernel; rows of the length of the bias.
        unsafe { self.launch(kernel("elementwise", "add_bias"), grid, &args) };
    }

    fn silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        gate(self, "silu_mul", x, y, len);
    }

    fn gelu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        gate(self, "gelu_mul", x, y, len);
    }

    fn clamped_silu_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        gate(self, "clamped_silu_mul", x, y, len);
    }

    fn limited_silu_mul(&self, x: &mut Buffer, y: &Buffer, limit: f32, len: usize) {
        limited_gate(self, "limited_silu_mul", x, y, limit, len);
    }

    fn relu_squared(&self, x: &mut Buffer, len: usize) {
        let mut shared = self.shared();
        let ticket = with_number(self, "relu_squared", x, 0.0, len);
        let at = offset_of!(Binary, quantized);
        shared.quants.record_producer(ticket, at, x, 1, len);
    }

    fn scale(&self, x: &mut Buffer, factor: f32, len: usize) {
        with_number(self, "scale", x, factor, len);
    }

    fn softcap(&self, x: &mut Buffer, cap: f32, len: usize) {
        with_number(self, "softcap", x, cap, len);
    }

    fn sigmoid_mul(&self, x: &mut Buffer, y: &Buffer, len: usize) {
        gate(self, "sigmoid_mul", x, y, len);
    }

    fn sigmoid_mul_rows(&self, x: &mut Buffer, gate: &Buffer, dim: usize, n: usize) {
        let args = Rows {
            x: x.first_mut(n * dim),
            y: gate.first(n),
            len: (n * dim) as u64,
            dim: dim as u64,
        };
        let grid = Grid::elements(n * dim, THREADS);
        // SAFETY: the arguments are the struct of the kernel; a gate for each row.
        unsafe { self.launch(kernel("elementwise", "sigmoid_mul_rows"), grid, &args) };
    }
}

const THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Binary {
    x: Address,
    y: Address,
    quantized: QuantizedInput,
    len: u64,
    number: f32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Rows {
    x: Address,
    y: Address,
    len: u64,
    dim: u64,
}

/// `x[i] = f(x[i], y[i])`. The result is often the input of the next product, so this kernel can quantize
/// it.
pub(crate) fn gate(cuda: &Cuda, name: &'static str, x: &mut Buffer, y: &Buffer, len: usize) {
    limited_gate(cuda, name, x, y, 0.0, len);
}

/// [`gate`] with a limit.
fn limited_gate(
    cuda: &Cuda,
    name: &'static str,
    x: &mut Buffer,
    y: &Buffer,
    limit: f32,
    len: usize,
) {
    let mut shared = cuda.shared();
    let ticket = binary(cuda, name, x, y, limit, len);
    let at = offset_of!(Binary, quantized);
    shared.quants.record_producer(ticket, at, x, 1, len);
}

/// `x[i] = f(x[i], y[i])`.
fn binary(
    cuda: &Cuda,
    name: &'static str,
    x: &mut Buffer,
    y: &Buffer,
    number: f32,
    len: usize,
) -> Option<Ticket> {
    let args = Binary {
        x: x.first_mut(len),
        y: y.first(len),
        quantized: QuantizedInput::NONE,
        len: len as u64,
        number,
        unused: 0,
    };
    let grid = Grid::elements(len, THREADS);
    // SAFETY: the arguments are the struct of these kernels; both buffers hold `len` elements.
    unsafe { cuda.launch(kernel("elementwise", name), grid, &args) }
}

/// `x[i] = f(x[i], number)`.
pub(crate) fn with_number(
    cuda: &Cuda,
    name: &'static str,
    x: &mut Buffer,
    number: f32,
    len: usize,
) -> Option<Ticket> {
    let args = Binary {
        x: x.first_mut(len),
        y: Address::NONE,
        quantized: QuantizedInput::NONE,
        len: len as u64,
        number,
        unused: 0,
    };
    let grid = Grid::elements(len, THREADS);
    // SAFETY: the arguments are the struct of these kernels, which do not use `y`; the buffer holds `len`
    // elements.
    unsafe { cuda.launch(kernel("elementwise", name), grid, &args) }
}
