//! Keys and values of one attention layer.

use std::ops::Range;

use kernels::backend::{Backend, CacheShape};
use schemas::arch::Hparams;

use super::CacheTypes;
use crate::error::ModelError;

/// One row per position, sequences one after another.
pub struct Kv<B: Backend> {
    /// Rotated keys.
    pub k: B::Cache,
    /// Values; no rows if the key rows serve as values too.
    pub v: B::Cache,
    has_values: bool,
}

impl<B: Backend> Kv<B> {
    /// Returns the shapes of the key and value caches of a block for `n_rows` positions.
    ///
    /// # Errors
    /// The head size is not a multiple of a type's block length.
    pub(super) fn shapes(
        hparams: &Hparams,
        block: u32,
        types: CacheTypes,
        n_rows: usize,
    ) -> Result<[CacheShape; 2], ModelError> {
        let head_dim = hparams.head_dim;
        // A compressed row serves as both.
        let n_value_rows = match hparams.mla.n_lora_kv {
            0 => n_rows,
            _ => 0,
        };
        for element in [types.k, types.v] {
            let block_len = element.block_len();
            if !head_dim.is_multiple_of(block_len as u64) {
                return Err(ModelError::CacheType {
                    element,
                    block_len,
                    head_dim,
                });
            }
        }
        let n_head = hparams.block_heads[block as usize].n_head_kv;
        let shape = |element, n_rows| CacheShape {
            n_rows,
            n_head: n_head as usize,
            head_dim: head_dim as usize,
            element,
        };
        Ok([shape(types.k, n_rows), shape(types.v, n_value_rows)])
    }

    pub(super) fn new(backend: &B, [k, v]: &[CacheShape; 2]) -> Kv<B> {
        Kv {
            k: backend.cache(k),
            v: backend.cache(v),
            has_values: v.n_rows > 0,
        }
    }

    /// Copies rows to the rows from `to` on.
    pub(super) fn copy(&mut self, backend: &B, rows: Range<usize>, to: usize) {
        backend.copy_cached(&mut self.k, rows.start, to, rows.len());
        if self.has_values {
            backend.copy_cached(&mut self.v, rows.start, to, rows.len());
        }
    }
}
