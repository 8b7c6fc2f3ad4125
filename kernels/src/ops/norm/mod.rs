//! Root mean square, layer and Euclidean norms.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Root mean square, layer and Euclidean norms.
pub trait NormOp: Storage {
    /// `out = x / sqrt(mean(x^2) + eps) * w` for `n` rows of as many elements as a row of `w` has. The rows of `w`
    /// take turns.
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        w: &Self::Weight,
        eps: f32,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// `out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w` for `n` rows of as many elements as `w` has.
    fn layer_norm(
        &self,
        x: &Self::Buffer,
        w: &Self::Weight,
        eps: f32,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// `x = x / sqrt(sum(x^2) + eps)`, in place, for `n` rows of `dim` elements.
    fn l2_norm(&self, x: &mut Self::Buffer, eps: f32, dim: usize, n: usize);
}
