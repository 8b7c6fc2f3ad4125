//! Rows of matrices, moved and shared out: no arithmetic, hence no kernels.

use std::marker::PhantomData;
use std::ops::Range;

use super::weight::Weight;
use crate::backend::Columns;

/// [`Backend::embed`](crate::backend::Backend::embed).
pub(super) fn embed(table: &Weight, tokens: impl ExactSizeIterator<Item = u32>, out: &mut [f32]) {
    let out = &mut out[..tokens.len() * table.n_cols];
    for (token, out) in tokens.zip(out.chunks_exact_mut(table.n_cols)) {
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

/// Some columns of a matrix whose other columns are written by others.
pub(super) struct ColumnsMut<'a> {
    /// The first column of the first row.
    start: *mut f32,
    n_rows: usize,
    n_cols: usize,
    /// Elements from one row to the next.
    stride: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is as exclusive as a mutable slice.
unsafe impl Send for ColumnsMut<'_> {}

impl<'a> ColumnsMut<'a> {
    /// Cuts a matrix, `(n, n_cols)`, in parts of `width` columns, the last one narrower.
    pub(super) fn split(
        matrix: &'a mut [f32],
        n_cols: usize,
        width: usize,
    ) -> impl ExactSizeIterator<Item = ColumnsMut<'a>> + Send {
        let n_rows = matrix.len() / n_cols;
        let start = Start(matrix.as_mut_ptr());
        (0..n_cols.div_ceil(width)).map(move |i| {
            let start = start.at(i * width);
            ColumnsMut {
                start,
                n_rows,
                n_cols: width.min(n_cols - i * width),
                stride: n_cols,
                matrix: PhantomData,
            }
        })
    }

    /// Columns.
    pub(super) fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Rows.
    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Some of the columns of a row.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(row < self.n_rows && columns.start <= columns.end && columns.end <= self.n_cols);
        // SAFETY: within the matrix, in columns that only this part has.
        unsafe {
            let start = self.start.add(row * self.stride + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        }
    }

    /// The same columns of two different rows.
    #[inline(always)]
    pub(super) fn two_rows(&mut self, rows: [usize; 2], columns: Range<usize>) -> [&mut [f32]; 2] {
        assert!(rows[0] != rows[1], "different rows");
        rows.map(|row| {
            let columns: *mut [f32] = self.row(row, columns.clone());
            // SAFETY: just checked to be within the matrix, and no other row has elements of it.
            unsafe { &mut *columns }
        })
    }
}

/// Where a matrix begins that is handed out in parts.
#[derive(Clone, Copy)]
struct Start(*mut f32);

// SAFETY: a place; what is done there is the business of the parts.
unsafe impl Send for Start {}

impl Start {
    fn at(self, element: usize) -> *mut f32 {
        // Nothing is read or written here: the place may be anywhere.
        self.0.wrapping_add(element)
    }
}
