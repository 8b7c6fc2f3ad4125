//! Matrix products of activations and weights.

pub(crate) mod cpu;
pub(crate) mod cpu_floats;
mod cpu_fused;
mod cpu_matrix;
mod cpu_prefetch;
pub(crate) mod cpu_quants;
mod cpu_tiled;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Matrix products of activations and weights.
pub trait MatmulOp: Storage {
    /// `out = x * w^T`, accumulated in `f32`. w `(n_out, n_in)`, x `(n, n_in)`, out `(n, n_out)`.
    fn matmul(&self, w: &Self::Weight, x: &Self::Buffer, n: usize, out: &mut Self::Buffer);

    /// [`MatmulOp::matmul`] of the same rows with several weights, each with its output.
    fn matmul_each(
        &self,
        products: &mut [(&Self::Weight, &mut Self::Buffer)],
        x: &Self::Buffer,
        n: usize,
    ) {
        for (w, out) in products {
            self.matmul(w, x, n, out);
        }
    }
}
