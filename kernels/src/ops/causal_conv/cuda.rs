//! Depthwise causal convolution.

use bytemuck::NoUninit;

use super::CausalConvOp;
use crate::backend::Step;
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::{Buffer, Weight};
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::steps::{reach, table};
use crate::cuda::{Cuda, count, kernel};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "causal_conv",
    text: include_str!("causal_conv.cu"),
    compiled_for: CompiledFor::Single,
};

impl CausalConvOp for Cuda {
    fn causal_conv(
        &self,
        x: &Buffer,
        w: &Weight,
        bias: Option<&Weight>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let (n_channel, width) = (w.n_rows, w.n_cols);
        let (n_row, n_slot) = reach(steps);
        let taps = w.numbers(self);
        let bias = bias.map_or(Address::NONE, |bias| bias.numbers(self));
        let mut shared = self.shared();
        let args = CausalConv {
            x: x.first(n_row * n_channel),
            taps,
            bias,
            steps: self.table(&mut shared, &table(steps)),
            state: state.first_mut(n_slot * (width - 1) * n_channel),
            out: out.first_mut(n_row * n_channel),
            n_step: count(steps.len()),
            n_channel: count(n_channel),
            kernel: count(width),
            unused: 0,
        };
        let grid = Grid::elements(n_channel, 128);
        // SAFETY: the arguments are the struct of the kernel; the buffers hold the rows and slots of the steps.
        unsafe { self.launch(kernel("causal_conv", "causal_conv"), grid, &args) };
    }
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct CausalConv {
    x: Address,
    taps: Address,
    bias: Address,
    steps: Address,
    state: Address,
    out: Address,
    n_step: u32,
    n_channel: u32,
    kernel: u32,
    unused: u32,
}
