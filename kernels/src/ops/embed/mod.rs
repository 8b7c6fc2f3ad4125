//! Embeddings: rows of a weight as `f32`.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Embeddings: rows of a weight as `f32`.
pub trait EmbedOp: Storage {
    /// `out[i] = table[tokens[i]]`. table `(n_vocab, n_embd)`, out `(tokens.len(), n_embd)`.
    fn embed(&self, table: &Self::Weight, tokens: &[u32], out: &mut Self::Buffer);
}
