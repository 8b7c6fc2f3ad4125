//! States of one recurrent layer.

use kernels::backend::Backend;
use schemas::arch::Hparams;

/// Slots with the states of the convolution and of the heads.
pub struct Recurrent<B: Backend> {
    /// The last inputs of the convolution, `(slots, conv_kernel - 1, n_channel)`.
    pub conv: B::Buffer,
    /// States of the heads, `(slots, inner_size * state_size)`.
    pub states: B::Buffer,
    /// Elements per slot of `conv` and `states`.
    lens: (usize, usize),
}

impl<B: Backend> Recurrent<B> {
    fn lens(hparams: &Hparams) -> (usize, usize) {
        let ssm = &hparams.ssm;
        let conv = (ssm.conv_kernel - 1) * ssm.n_channel();
        let states = ssm.inner_size * ssm.state_size;
        (conv as usize, states as usize)
    }

    /// Returns the number of elements per slot.
    pub fn slot_len(hparams: &Hparams) -> usize {
        let (conv, states) = Self::lens(hparams);
        conv + states
    }

    pub(super) fn new(backend: &B, hparams: &Hparams, n_slot: usize) -> Recurrent<B> {
        let lens @ (conv, states) = Self::lens(hparams);
        Recurrent {
            conv: backend.buffer(n_slot * conv),
            states: backend.buffer(n_slot * states),
            lens,
        }
    }

    /// Copies the state of a slot to another.
    pub(super) fn copy(&mut self, backend: &B, from: usize, to: usize) {
        let (conv, states) = self.lens;
        backend.copy_within(&mut self.conv, from * conv, to * conv, conv);
        backend.copy_within(&mut self.states, from * states, to * states, states);
    }
}
