//! Element-wise operations.

use std::mem::offset_of;

use bytemuck::NoUninit;

use super::activation::QuantizedInput;
use super::device::{Address, Grid};
use super::memory::{Buffer, Weight};
use super::norm::Sum;
use super::queue::Ticket;
use super::{Cuda, kernel};

const THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Binary {
    x: Address,
    y: Address,
    coding: QuantizedInput,
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

/// `x[i] = x[i] + y[i]`.
pub(super) fn add(cuda: &Cuda, x: &mut Buffer, y: &Buffer, len: usize) {
    let mut shared = cuda.shared();
    let ticket = binary(cuda, "add", x, y, len);
    shared.sum = ticket.map(|ticket| Sum {
        ticket,
        contents: x.contents(),
        len,
        added: y.first(len),
    });
}

/// `x[i] = f(x[i], y[i])`. The result is often the input of the next product, so this kernel can quantize
/// it.
pub(super) fn gate(cuda: &Cuda, name: &'static str, x: &mut Buffer, y: &Buffer, len: usize) {
    let mut shared = cuda.shared();
    let ticket = binary(cuda, name, x, y, len);
    let at = offset_of!(Binary, coding);
    shared.quants.made(ticket, at, x, 1, len);
}

/// `x[i] = f(x[i], y[i])`.
fn binary(
    cuda: &Cuda,
    name: &'static str,
    x: &mut Buffer,
    y: &Buffer,
    len: usize,
) -> Option<Ticket> {
    let args = Binary {
        x: x.first_mut(len),
        y: y.first(len),
        coding: QuantizedInput::NONE,
        len: len as u64,
        number: 0.0,
        unused: 0,
    };
    let grid = Grid::elements(len, THREADS);
    // SAFETY: the arguments are the struct of these kernels; both buffers hold `len` elements.
    unsafe { cuda.launch(kernel("elementwise", name), grid, &args) }
}

/// `x[i] = f(x[i], number)`.
pub(super) fn with_number(
    cuda: &Cuda,
    name: &'static str,
    x: &mut Buffer,
    number: f32,
    len: usize,
) {
    let args = Binary {
        x: x.first_mut(len),
        y: Address::NONE,
        coding: QuantizedInput::NONE,
        len: len as u64,
        number,
        unused: 0,
    };
    let grid = Grid::elements(len, THREADS);
    // SAFETY: the arguments are the struct of these kernels, which do not use `y`; the buffer holds `len`
    // elements.
    unsafe { cuda.launch(kernel("elementwise", name), grid, &args) };
}

/// [`Backend::add_bias`](crate::backend::Backend::add_bias).
pub(super) fn add_bias(cuda: &Cuda, x: &mut Buffer, bias: &Weight, n: usize) {
    let len = n * bias.n_cols;
    let args = Rows {
        x: x.first_mut(len),
        y: bias.numbers(cuda),
        len: len as u64,
        dim: bias.n_cols as u64,
    };
    let grid = Grid::elements(len, THREADS);
    // SAFETY: the arguments are the struct of the kernel; rows of the length of the bias.
    unsafe { cuda.launch(kernel("elementwise", "add_bias"), grid, &args) };
}

/// [`Backend::sigmoid_mul_rows`](crate::backend::Backend::sigmoid_mul_rows).
pub(super) fn sigmoid_mul_rows(cuda: &Cuda, x: &mut Buffer, gate: &Buffer, dim: usize, n: usize) {
    let args = Rows {
        x: x.first_mut(n * dim),
        y: gate.first(n),
        len: (n * dim) as u64,
        dim: dim as u64,
    };
    let grid = Grid::elements(n * dim, THREADS);
    // SAFETY: the arguments are the struct of the kernel; a gate for each row.
    unsafe { cuda.launch(kernel("elementwise", "sigmoid_mul_rows"), grid, &args) };
}
