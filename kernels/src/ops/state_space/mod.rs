//! The state space recurrence of Mamba-2.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Step;
use crate::backend::Storage;

/// The state space recurrence of Mamba-2.
pub trait StateSpaceOp: Storage {
    /// The recurrence, one step per token, per head with state `S` of shape `(state_dim, head_dim)`: `d =
    /// softplus(dt + dt_bias)`, then `S = exp(d a) S + b (d x)^T; out = S^T c + D x`, where `D` is [`StateSpaceInput::d`].
    ///
    /// mixed `(n, n_head * head_dim + 2 * n_group * state_dim)`: x of all heads, then b, then c of all groups; dt
    /// `(n, n_head)`; dt_bias, a and d `(n_head)`; out `(n, n_head * head_dim)`; state slots `n_head * state_dim *
    /// head_dim`.
    fn state_space(
        &self,
        shape: &StateSpaceShape,
        input: StateSpaceInput<'_, Self>,
        steps: &[Step],
        state: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );
}

/// Shape of a state space recurrence.
#[derive(Clone, Copy, Debug)]
pub struct StateSpaceShape {
    /// Heads.
    pub n_head: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of consecutive heads with the same `b` and `c`.
    pub n_group: usize,
    /// Elements of `b` and `c`.
    pub state_dim: usize,
}

impl StateSpaceShape {
    /// Returns the group of a head.
    pub fn group(&self, head: usize) -> usize {
        head / (self.n_head / self.n_group)
    }

    /// Returns the width of `mixed`.
    pub fn n_channel(&self) -> usize {
        self.n_head * self.head_dim + 2 * self.n_group * self.state_dim
    }

    /// Returns the number of elements of a head's state.
    pub fn state_len(&self) -> usize {
        self.state_dim * self.head_dim
    }
}

/// Operands of [`StateSpaceOp::state_space`].
pub struct StateSpaceInput<'a, B: Storage> {
    /// `x`, `b` and `c`, after the convolution.
    pub mixed: &'a B::Buffer,
    /// Time step, before the bias.
    pub dt: &'a B::Buffer,
    /// `ssm_dt.bias`.
    pub dt_bias: &'a B::Weight,
    /// `ssm_a`: minus the exponential of the checkpoint's `A_log`.
    pub a: &'a B::Weight,
    /// `ssm_d`: the share of the input that goes to the output directly.
    pub d: &'a B::Weight,
}
