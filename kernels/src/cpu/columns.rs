//! [`ColumnsMut`]: a matrix split by columns.

use std::marker::PhantomData;
use std::ops::Range;

/// Some columns of a matrix; other parts may be written by other threads at the same time.
pub(crate) struct ColumnsMut<'a> {
    /// The first column of the first row.
    start: *mut f32,
    n_rows: usize,
    n_cols: usize,
    /// Elements from one row to the next.
    stride: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: as exclusive as a mutable slice.
unsafe impl Send for ColumnsMut<'_> {}

impl<'a> ColumnsMut<'a> {
    /// Splits a matrix, `(n, n_cols)`, into parts of `width` columns; the last may be narrower.
    pub(crate) fn split(
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

    /// Takes all columns of a matrix, `(n, n_cols)`.
    pub(crate) fn whole(matrix: &'a mut [f32], n_cols: usize) -> ColumnsMut<'a> {
        ColumnsMut {
            start: matrix.as_mut_ptr(),
            n_rows: matrix.len() / n_cols,
            n_cols,
            stride: n_cols,
            matrix: PhantomData,
        }
    }

    /// Splits this part after its first `n` columns.
    pub(crate) fn split_at(self, n: usize) -> (ColumnsMut<'a>, ColumnsMut<'a>) {
        assert!(n <= self.n_cols, "columns of this part");
        let part = |first: usize, n_cols: usize| ColumnsMut {
            // Only computes an address, so it may be out of bounds.
            start: self.start.wrapping_add(first),
            n_cols,
            ..self
        };
        (part(0, n), part(n, self.n_cols - n))
    }

    /// Number of columns of this part.
    pub(crate) fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Number of rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns a range of columns of one row.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(row < self.n_rows && columns.start <= columns.end && columns.end <= self.n_cols);
        // SAFETY: within the matrix, in columns that belong to this part only.
        unsafe {
            let start = self.start.add(row * self.stride + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        }
    }

    /// Returns the same columns of two different rows.
    #[inline(always)]
    pub(crate) fn two_rows(&mut self, rows: [usize; 2], columns: Range<usize>) -> [&mut [f32]; 2] {
        assert!(rows[0] != rows[1], "different rows");
        rows.map(|row| {
            let columns: *mut [f32] = self.row(row, columns.clone());
            // SAFETY: just checked to be within the matrix, and the two rows share no elements.
            unsafe { &mut *columns }
        })
    }
}

/// Start of a matrix that is split into parts.
#[derive(Clone, Copy)]
struct Start(*mut f32);

// SAFETY: only an address; the parts are responsible for accesses.
unsafe impl Send for Start {}

impl Start {
    fn at(self, element: usize) -> *mut f32 {
        // Only computes an address, so it may be out of bounds.
        self.0.wrapping_add(element)
    }
}
