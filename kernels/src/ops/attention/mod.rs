//! Softmax attention over KV caches.

pub(crate) mod cpu;
pub(crate) mod cuda;

use std::ops::Range;

use crate::backend::Storage;

/// Softmax attention over KV caches.
pub trait AttentionOp: Storage {
    /// Softmax attention. Each query row attends to the visible rows of its sequence,
    /// `shape.visible(keys[i])`. q and out are `(keys.len(), n_head * head_dim)`, cache rows have
    /// `n_head_kv` heads of `head_dim`. Keys are processed in order in blocks of a fixed size, independent
    /// of the batch.
    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, Self>,
        keys: &[KeyRows],
        out: &mut Self::Buffer,
    );
}

/// Shape of an attention operation.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; query head `h` reads head `h / (n_head / n_head_kv)`.
    pub n_head_kv: usize,
    /// Elements of a query or key head.
    pub head_dim: usize,
    /// Factor on `q . k` before the softmax.
    pub scale: f32,
    /// Sliding window: a query attends to the last `window` keys of its past; `None` for all of them.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// Returns the rows of `past` that a query attends to under the window.
    pub fn visible(&self, past: &KeyRows) -> KeyRows {
        let hidden = self.window.map_or(0, |n| past.len().saturating_sub(n));
        past.start + hidden..past.end
    }
}

/// Operands of [`AttentionOp::attention`].
pub struct AttentionInput<'a, B: Storage> {
    /// Queries.
    pub q: &'a B::Buffer,
    /// The key cache.
    pub k: &'a B::Cache,
    /// The value cache.
    pub v: &'a B::Cache,
    /// Attention sinks, `(n_head)`: the score of one more key per query head, without a value.
    pub sinks: Option<&'a B::Weight>,
}

/// Cache rows of a query's causal past: from the start of its sequence to its own row, inclusive.
pub type KeyRows = Range<usize>;
