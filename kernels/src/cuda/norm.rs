//! Root mean square and Euclidean norms.

use bytemuck::NoUninit;

use super::device::{Address, Grid};
use super::memory::{Buffer, Weight};
use super::{Cuda, count, kernel};

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct RmsNorm {
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

/// A block for each row.
fn grid(n: usize) -> Grid {
    Grid::new([count(n), 1, 1], 256)
}

/// [`Backend::rms_norm`](crate::backend::Backend::rms_norm).
pub(super) fn rms_norm(cuda: &Cuda, x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer) {
    let args = RmsNorm {
        x: x.first(n * w.n_cols),
        weight: w.numbers(cuda),
        out: out.first(n * w.n_cols),
        dim: count(w.n_cols),
        eps,
    };
    // SAFETY: the struct of the kernel; both buffers hold `n` rows of the length of the weight.
    unsafe { cuda.launch(kernel("norm", "rms_norm"), grid(n), &args) };
}

/// [`Backend::l2_norm`](crate::backend::Backend::l2_norm).
pub(super) fn l2_norm(cuda: &Cuda, x: &mut Buffer, eps: f32, dim: usize, n: usize) {
    let args = L2Norm {
        x: x.first(n * dim),
        dim: count(dim),
        eps,
    };
    // SAFETY: the struct of the kernel; the buffer holds `n` rows.
    unsafe { cuda.launch(kernel("norm", "l2_norm"), grid(n), &args) };
}
