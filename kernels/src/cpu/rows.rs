//! Moving rows: no arithmetic, hence no kernels.

use super::weight::Weight;
use crate::backend::Columns;

/// [`Backend::embed`](crate::backend::Backend::embed).
pub(super) fn embed(table: &Weight, tokens: &[u32], out: &mut [f32]) {
    let out = &mut out[..tokens.len() * table.n_cols];
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(table.n_cols)) {
        table.decode_row(token as usize, out);
    }
}

/// [`Backend::gather_rows`](crate::backend::Backend::gather_rows).
pub(super) fn gather_rows(src: &[f32], dim: usize, rows: &[usize], dst: &mut [f32]) {
    for (i, &row) in rows.iter().enumerate() {
        dst[i * dim..][..dim].copy_from_slice(&src[row * dim..][..dim]);
    }
}

/// [`Backend::copy_columns`](crate::backend::Backend::copy_columns).
pub(super) fn copy_columns(
    src: &[f32],
    from: Columns,
    dst: &mut [f32],
    to: Columns,
    width: usize,
    n: usize,
) {
    assert!(from.offset + width <= from.stride && to.offset + width <= to.stride);
    for i in 0..n {
        let src = &src[i * from.stride + from.offset..][..width];
        dst[i * to.stride + to.offset..][..width].copy_from_slice(src);
    }
}
