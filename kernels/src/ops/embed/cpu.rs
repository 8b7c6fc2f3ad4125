//! Embeddings on the CPU.

use super::EmbedOp;
use crate::cpu::{Buffer, Cpu, Weight};

impl EmbedOp for Cpu {
    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) {
        embed_rows(table, tokens.iter().copied(), out);
    }
}

/// Decodes rows of a weight.
pub(crate) fn embed_rows(
    table: &Weight,
    tokens: impl ExactSizeIterator<Item = u32>,
    out: &mut [f32],
) {
    let out = &mut out[..tokens.len() * table.n_cols];
    for (token, out) in tokens.zip(out.chunks_exact_mut(table.n_cols)) {
        table.decode_row(token as usize, out);
    }
}
