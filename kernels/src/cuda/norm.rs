//! Root mean square and Euclidean norms.

use std::mem::offset_of;

use bytemuck::NoUninit;

use super::activation::QuantizedInput;
use super::device::{Address, Grid};
use super::memory::{Buffer, Contents, Weight};
use super::queue::{Ticket, Touched};
use super::{Cuda, count, kernel};

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct RmsNorm {
    x: Address,
    added: Address,
    weight: Address,
    out: Address,
    coding: QuantizedInput,
    n: u32,
    dim: u32,
    eps: f32,
    unused: u32,
}

/// A queued addition that a norm of its result can perform in the same kernel.
pub(super) struct Sum {
    pub(super) ticket: Ticket,
    /// The result, and its number of elements.
    pub(super) contents: Contents,
    pub(super) len: usize,
    /// The summand.
    pub(super) added: Address,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct L2Norm {
    x: Address,
    dim: u32,
    eps: f32,
}

/// One block per row.
fn grid(n: usize) -> Grid {
    Grid::new([count(n), 1, 1], 256)
}

/// [`Backend::rms_norm`](crate::backend::Backend::rms_norm).
pub(super) fn rms_norm(cuda: &Cuda, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
    let len = n * w.n_cols;
    let weight = w.numbers(cuda);
    let mut shared = cuda.shared();
    let sum = shared.sum.take().filter(|sum| {
        (sum.contents, sum.len) == (x.contents(), len) && cuda.queue.take_back(sum.ticket)
    });
    let args = RmsNorm {
        x: x.first(len),
        added: sum.map_or(Address::NONE, |sum| sum.added),
        weight,
        out: out.first_mut(len),
        coding: QuantizedInput::NONE,
        n: count(n),
        dim: count(w.n_cols),
        eps,
        unused: 0,
    };
    let touched = Touched {
        reads: [args.x, args.added],
        writes: [args.x, args.out],
    };
    let kernel = kernel("norm", "rms_norm");
    // SAFETY: the arguments are the struct of the kernel; the buffers hold `n` rows of the length of the
    // weight.
    let ticket = unsafe { cuda.launch_beside(kernel, grid(n), &args, touched) };
    let at = offset_of!(RmsNorm, coding);
    shared.quants.made(ticket, at, out, n, w.n_cols);
}

/// [`Backend::l2_norm`](crate::backend::Backend::l2_norm).
pub(super) fn l2_norm(cuda: &Cuda, x: &mut Buffer, eps: f32, dim: usize, n: usize) {
    let args = L2Norm {
        x: x.first_mut(n * dim),
        dim: count(dim),
        eps,
    };
    // SAFETY: the arguments are the struct of the kernel; the buffer holds `n` rows.
    unsafe { cuda.launch(kernel("norm", "l2_norm"), grid(n), &args) };
}
