//! Depthwise causal convolution.

use bytemuck::NoUninit;

use super::device::{Address, Grid};
use super::memory::{Buffer, Weight};
use super::{Cuda, count, kernel};
use crate::backend::Step;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct CausalConv {
    x: Address,
    taps: Address,
    steps: Address,
    state: Address,
    out: Address,
    n_step: u32,
    n_channel: u32,
    kernel: u32,
    unused: u32,
}

/// Encodes steps as a table: row, slot to read or none, slot to write.
pub(super) fn table(steps: &[Step]) -> Vec<u32> {
    steps
        .iter()
        .flat_map(|step| {
            [
                count(step.row),
                step.read.map_or(u32::MAX, count),
                count(step.write),
            ]
        })
        .collect()
}

/// Returns the number of rows and slots that the steps access.
pub(super) fn reach(steps: &[Step]) -> (usize, usize) {
    let rows = steps.iter().map(|step| step.row + 1).max();
    let slots = steps
        .iter()
        .map(|step| 1 + step.write.max(step.read.unwrap_or(0)))
        .max();
    (rows.unwrap_or(0), slots.unwrap_or(0))
}

/// [`Backend::causal_conv`](crate::backend::Backend::causal_conv).
pub(super) fn causal_conv(
    cuda: &Cuda,
    x: &Buffer,
    w: &Weight,
    steps: &[Step],
    state: &mut Buffer,
    out: &mut Buffer,
) {
    let (n_channel, width) = (w.n_rows, w.n_cols);
    let (n_row, n_slot) = reach(steps);
    let taps = w.numbers(cuda);
    let mut shared = cuda.shared();
    let args = CausalConv {
        x: x.first(n_row * n_channel),
        taps,
        steps: cuda.table(&mut shared, &table(steps)),
        state: state.first_mut(n_slot * (width - 1) * n_channel),
        out: out.first_mut(n_row * n_channel),
        n_step: count(steps.len()),
        n_channel: count(n_channel),
        kernel: count(width),
        unused: 0,
    };
    let grid = Grid::elements(n_channel, 128);
    // SAFETY: the arguments are the struct of the kernel; the buffers hold the rows and slots of the steps.
    unsafe { cuda.launch(kernel("causal_conv", "causal_conv"), grid, &args) };
}
