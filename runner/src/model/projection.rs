//! Linear projections, with or without a bias.

use kernels::backend::Backend;

use crate::error::ModelError;

use super::matrix::{Matrix, multiply_each};
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
        forward_each(backend, x, n, [(self, out)]);
    }
}

/// Computes several projections of the same `n` rows of `x`, each with its output.
pub(super) fn forward_each<B: Backend, const N: usize>(
    backend: &B,
    x: &B::Buffer,
    n: usize,
    mut projections: [(&Projection<B>, &mut B::Buffer); N],
) {
    let products = projections
        .each_mut()
        .map(|(projection, out)| (&projection.weight, &mut **out));
    multiply_each(backend, x, n, products);
    for (projection, out) in projections {
        if let Some(bias) = &projection.bias {
            backend.add_bias(out, bias, n);
        }
    }
}
