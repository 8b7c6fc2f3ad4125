//! The gated delta rule.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Step;
use crate::backend::Storage;

/// The gated delta rule.
pub trait GatedDeltaOp: Storage {
    /// The gated delta rule, one step per token, per value head with state `S` of shape `(head_dim_k,
    /// head_dim_v)`: `g = exp(softplus(alpha + dt_bias) * a)`, `b = sigmoid(beta)`, then `S = g S; S = S + k (b (v - S^T k))^T; out = S^T q / sqrt(head_dim_k)`.
    ///
    /// q and k `(n, n_head_k * head_dim_k)`, already normalised; v and out `(n, n_head_v * head_dim_v)`;
    /// alpha and beta `(n, n_head_v)`; dt_bias and a `(n_head_v)`; state slots `n_head_v * head_dim_k * head_dim_v`.
    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, Self>,
        steps: &[Step],
        state: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );
}

/// Shape of a gated delta rule operation.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    /// Key (and query) heads.
    pub n_head_k: usize,
    /// Value heads.
    pub n_head_v: usize,
    /// Elements of a query or key head.
    pub head_dim_k: usize,
    /// Elements of a value head.
    pub head_dim_v: usize,
    /// Mapping of value heads to key heads.
    pub order: HeadOrder,
}

impl DeltaShape {
    /// Returns the key head that a value head uses.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Tiled => value_head % self.n_head_k,
            HeadOrder::Grouped => value_head / (self.n_head_v / self.n_head_k),
        }
    }
}

/// Order of value heads where several share one key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// One for each key head, then the next for each: head `h` uses key head `h % n_head_k`.
    Tiled,
    /// All value heads of the first key head, then those of the next: head `h` uses key head `h / (n_head_v
    /// / n_head_k)`.
    Grouped,
}

/// Operands of [`GatedDeltaOp::gated_delta_rule`].
pub struct DeltaInput<'a, B: Storage> {
    /// Normalised queries.
    pub q: &'a B::Buffer,
    /// Normalised keys.
    pub k: &'a B::Buffer,
    /// Values.
    pub v: &'a B::Buffer,
    /// Decay input, before the bias.
    pub alpha: &'a B::Buffer,
    /// Write strength (beta), before the sigmoid.
    pub beta: &'a B::Buffer,
    /// `ssm_dt.bias`.
    pub dt_bias: &'a B::Weight,
    /// `ssm_a`: minus the exponential of the checkpoint's `A_log`.
    pub a: &'a B::Weight,
}
