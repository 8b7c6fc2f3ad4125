//! Moving rows and columns of activations.

pub(crate) mod cpu;
pub(crate) mod cuda;

use crate::backend::Storage;

/// Moving rows and columns of activations.
pub trait RowsOp: Storage {
    /// Copies row `rows[i]` of `src`, `dim` elements, to row `i` of `dst`.
    fn gather_rows(&self, src: &Self::Buffer, dim: usize, rows: &[usize], dst: &mut Self::Buffer);

    /// Copies `n` rows of `dim` elements from `src`, starting at row `from`, to `dst`, starting at row
    /// `to`.
    fn copy_rows(
        &self,
        src: &Self::Buffer,
        from: usize,
        dst: &mut Self::Buffer,
        to: usize,
        dim: usize,
        n: usize,
    );

    /// Copies `len` elements within a buffer, from offset `from` to offset `to`; the ranges do not overlap.
    fn copy_within(&self, buffer: &mut Self::Buffer, from: usize, to: usize, len: usize);

    /// For each of `n` rows copies `width` elements: `dst[i * to.stride + to.offset ..]` from
    /// `src[i * from.stride + from.offset ..]`. Splits and joins packed projections.
    fn copy_columns(
        &self,
        src: &Self::Buffer,
        from: Columns,
        dst: &mut Self::Buffer,
        to: Columns,
        width: usize,
        n: usize,
    );
}

/// Layout of one side of [`RowsOp::copy_columns`].
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Elements from one row to the next.
    pub stride: usize,
    /// First element of each row.
    pub offset: usize,
}
