//! Root mean square and Euclidean norms.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Root mean square and Euclidean norms.
pub trait NormOp: Storage {
    /// `out = x / sqrt(mean(x^2) + eps) * w` for `n` rows of as many elements as `w` has.
    fn rms_norm(
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
