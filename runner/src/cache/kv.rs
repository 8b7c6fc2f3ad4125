//! Keys and values of one attention layer.

use kernels::backend::Backend;
use schemas::arch::Hparams;

/// One row a position, sequences one after another.
pub struct Kv<B: Backend> {
    /// Rotated keys, `(n_seq * n_ctx, n_head_kv * head_dim)`.
    pub k: B::Buffer,
    /// Values, of the same shape; none where rows are keys and values at once.
    pub v: B::Buffer,
}

impl<B: Backend> Kv<B> {
    /// Elements of a row.
    pub fn row_len(hparams: &Hparams) -> usize {
        (hparams.n_head_kv * hparams.head_dim) as usize
    }

    /// Rows for each position: one of keys, and one of values.
    pub(super) fn rows_per_position(hparams: &Hparams) -> usize {
        match hparams.mla.n_lora_kv {
            0 => 2,
            _ => 1,
        }
    }

    pub(super) fn new(backend: &B, hparams: &Hparams, n_rows: usize) -> Kv<B> {
        let row_len = Self::row_len(hparams);
        let n_value_rows = n_rows * (Self::rows_per_position(hparams) - 1);
        Kv {
            k: backend.buffer(n_rows * row_len),
            v: backend.buffer(n_value_rows * row_len),
        }
    }
}
