//! Depthwise causal convolution.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Depthwise causal convolution.
pub trait CausalConvOp: Storage {
    /// Depthwise causal convolution followed by SiLU, one step per token.
    ///
    /// x and out `(n, n_channel)`, w `(n_channel, kernel)` with taps oldest first, bias `(n_channel)`, state slots
    /// `(kernel - 1, n_channel)`: the previous raw inputs, oldest first. Rows of `out` without a step are unchanged.
    fn causal_conv(
        &self,
        x: &Self::Buffer,
        w: &Self::Weight,
        bias: Option<&Self::Weight>,
        steps: &[Step],
        state: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );
}

/// One recurrent step: row `row` of the batch advances a recurrent state.
///
/// Steps of one sequence are ordered by position. A state is stored in a slot. Reading one slot and writing
/// another keeps the old state as a snapshot for rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Row of the batch.
    pub row: usize,
    /// Slot with the state before the step; `None`: the zero state that starts a sequence.
    pub read: Option<usize>,
    /// Slot that receives the state after the step; may equal `read`.
    pub write: usize,
}
