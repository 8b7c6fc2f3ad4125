//! Linear maps, with or without a bias.

use kernels::backend::Backend;

use crate::error::ModelError;

use super::weights::Weights;

/// A matrix, and a bias where the checkpoint has one.
pub(super) struct Projection<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Weight>,
}

impl<B: Backend> Projection<B> {
    /// The tensors of that name.
    pub(super) fn load(weights: &mut Weights<'_, B>, name: &str) -> Result<Self, ModelError> {
        Ok(Projection {
            weight: weights.need(&format!("{name}.weight"))?,
            bias: weights.get(&format!("{name}.bias"))?,
        })
    }

    /// From `n` rows of `x` to as many of `out`.
    pub(super) fn forward(&self, backend: &B, x: &B::Buffer, n: usize, out: &mut B::Buffer) {
        backend.matmul(&self.weight, x, n, out);
        if let Some(bias) = &self.bias {
            backend.add_bias(out, bias, n);
        }
    }
}
