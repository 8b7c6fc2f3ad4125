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
    has_keys: bool,
    has_values: bool,
}

impl<B: Backend> Kv<B> {
    /// Returns the shapes of the key and value caches of a block for `n_rows` positions; they have no rows if
    /// the block attends to the keys and values of another.
    ///
    /// # Errors
    /// The head size is not a multiple of a type's block length.
    pub(super) fn shapes(
        hparams: &Hparams,
        block: u32,
        types: CacheTypes,
        n_rows: usize,
    ) -> Result<[CacheShape; 2], ModelError> {
        let own = hparams.of_block(block);
        let head_dim = own.head_dim;
        let n_rows = if own.shares_kv { 0 } else { n_rows };
        // A compressed row serves as both.
        let is_shared = hparams.mla.n_lora_kv > 0 || hparams.arch.blocks.compressed;
        let n_value_rows = if is_shared { 0 } else { n_rows };
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
        let shape = |element, n_rows| CacheShape {
            n_rows,
            n_head: own.n_head_kv as usize,
            head_dim: head_dim as usize,
            element,
        };
        Ok([shape(types.k, n_rows), shape(types.v, n_value_rows)])
    }

    pub(super) fn new(backend: &B, [k, v]: &[CacheShape; 2]) -> Kv<B> {
        Kv {
            k: backend.cache(k),
            v: backend.cache(v),
            has_keys: k.n_rows > 0,
            has_values: v.n_rows > 0,
        }
    }

    /// Copies rows to the rows from `to` on.
    pub(super) fn copy(&mut self, backend: &B, rows: Range<usize>, to: usize) {
        if self.has_keys {
            backend.copy_cached(&mut self.k, rows.start, to, rows.len());
        }
        if self.has_values {
            backend.copy_cached(&mut self.v, rows.start, to, rows.len());
        }
    }
}
