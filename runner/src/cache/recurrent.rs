//! States of one recurrent layer.

use kernels::backend::Backend;
use schemas::arch::Hparams;

/// Slots with the states of the convolution and of the delta rule.
pub struct Recurrent<B: Backend> {
    /// The last inputs of the convolution, `(slots, conv_kernel - 1, n_channel)`.
    pub conv: B::Buffer,
    /// Delta rule states, `(slots, n_head_v, state_size, state_size)`.
    pub delta: B::Buffer,
    /// Elements per slot of `conv` and `delta`.
    lens: (usize, usize),
}

impl<B: Backend> Recurrent<B> {
    fn lens(hparams: &Hparams) -> (usize, usize) {
        let ssm = &hparams.ssm;
        let conv = (ssm.conv_kernel - 1) * ssm.n_channel();
        let delta = ssm.inner_size * ssm.state_size;
        (conv as usize, delta as usize)
    }

    /// Returns the number of elements per slot.
    pub fn slot_len(hparams: &Hparams) -> usize {
        let (conv, delta) = Self::lens(hparams);
        conv + delta
    }

    pub(super) fn new(backend: &B, hparams: &Hparams, n_slot: usize) -> Recurrent<B> {
        let lens @ (conv, delta) = Self::lens(hparams);
        Recurrent {
            conv: backend.buffer(n_slot * conv),
            delta: backend.buffer(n_slot * delta),
            lens,
        }
    }

    /// Copies the state of a slot to another.
    pub(super) fn copy(&mut self, backend: &B, from: usize, to: usize) {
        let (conv, delta) = self.lens;
        backend.copy_within(&mut self.conv, from * conv, to * conv, conv);
        backend.copy_within(&mut self.delta, from * delta, to * delta, delta);
    }
}
