//! Linear projections, with or without a bias.

use kernels::backend::Backend;

use crate::error::ModelError;

use super::matrix::Matrix;
use super::weights::Weights;

/// A matrix, and its bias if the file has one.
pub(super) struct Projection<B: Backend> {
    weight: Matrix<B>,
    bias: Option<B::Weight>,
}

impl<B: Backend> Projection<B> {
    /// Loads the tensors with this name.
    pub(super) fn load(weights: &mut Weights<'_, B>, name: &str) -> Result<Self, ModelError> {
        Ok(Projection {
            weight: weights.need_matrix(&format!("{name}.weight"))?,
            bias: weights.get(&format!("{name}.bias"))?,
        })
    }

    /// Computes `n` rows of `out` from `n` rows of `x`.
    pub(super) fn forward(&self, backend: &B, x: &B::Buffer, n: usize, out: &mut B::Buffer) {
        self.weight.multiply(backend, x, n, out);
        if let Some(bias) = &self.bias {
            backend.add_bias(out, bias, n);
        }
    }
}
