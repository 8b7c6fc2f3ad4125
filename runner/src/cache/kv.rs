//! Keys and values of one attention layer.

use kernels::backend::Backend;
use schemas::arch::Hparams;

/// One row a position, sequences one after another.
pub struct Kv<B: Backend> {
    /// Rotated keys, `(n_seq * n_ctx, n_head_kv * head_dim)`.
    pub k: B::Buffer,
    /// Values, of the same shape.
    pub v: B::Buffer,
}

impl<B: Backend> Kv<B> {
    /// Elements of a row.
    pub fn row_len(hparams: &Hparams) -> usize {
        (hparams.n_head_kv * hparams.head_dim) as usize
    }

    pub(super) fn new(backend: &B, hparams: &Hparams, n_rows: usize) -> Kv<B> {
        let len = n_rows * Self::row_len(hparams);
        Kv {
            k: backend.buffer(len),
            v: backend.buffer(len),
        }
    }
}
