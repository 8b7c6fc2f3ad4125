//! Transposes each group of rows. A row of the file needs one element of every row of its group, so groups
//! are read whole; the groups of such tensors are small.

use std::ops::Range;
use std::sync::Arc;

use kernels::types::Codec;
use schemas::gguf::{Extent, FilePosition, ReadError, RowError, Source, SourceError};

use crate::range::check_range;

/// The rows of another source, transposed group by group.
pub(crate) struct Transposed {
    /// The source, with rows in F32.
    pub(crate) inner: Arc<dyn Source>,
    /// Rows per group in the source, which become columns.
    pub(crate) n_columns: usize,
    /// Columns of the source, which become the rows of a group.
    pub(crate) n_rows: usize,
    pub(crate) encoder: Codec,
}

impl Transposed {
    /// Returns the first source row of a group.
    fn first_row(&self, group: u64) -> u64 {
        group * self.n_columns as u64
    }
}

impl Source for Transposed {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        if rows.is_empty() {
            return Ok(());
        }
        let row_bytes = out.len() / (rows.end - rows.start) as usize;
        let mut out = out.chunks_exact_mut(row_bytes);
        let mut bytes = vec![0; self.n_columns * self.n_rows * size_of::<f32>()];
        let mut x = vec![0.0; self.n_columns];
        let mut row = rows.start;
        while row < rows.end {
            let (group, start) = (row / self.n_rows as u64, row as usize % self.n_rows);
            let end = self.n_rows.min(start + (rows.end - row) as usize);
            let first = self.first_row(group);
            self.inner
                .read(first..first + self.n_columns as u64, &mut bytes)
                .map_err(|error| in_row(row, error))?;
            let (values, _) = bytes.as_chunks::<4>();
            for (column, out) in (start..end).zip(out.by_ref()) {
                for (x, values) in x.iter_mut().zip(values.chunks_exact(self.n_rows)) {
                    *x = f32::from_le_bytes(values[column]);
                }
                let row = group * self.n_rows as u64 + column as u64;
                check_range(&x, row, self.encoder.dtype())
                    .map_err(|error| in_row(row, error.into()))?;
                self.encoder.quantize(&x, None, out);
            }
            row += (end - start) as u64;
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        self.inner.input(self.first_row(row / self.n_rows as u64))
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.extents()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.inner.check_unchanged()
    }
}

/// Converts an error in a group's data to an error of the row that needs it.
fn in_row(row: u64, error: SourceError) -> SourceError {
    match error.downcast::<RowError>() {
        Ok(found) => Box::new(RowError {
            row,
            error: found.error,
        }),
        Err(other) => Box::new(RowError { row, error: other }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::types::codec;
    use schemas::gguf::{DType, Owned};

    #[test]
    fn any_rows_are_those_of_the_whole() {
        // Two groups of three rows of four.
        let bytes = (0..24).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let row_bytes = 16;
        let source = Transposed {
            inner: Arc::new(Owned { bytes, row_bytes }),
            n_columns: 3,
            n_rows: 4,
            encoder: codec(DType::F32).expect("has a codec"),
        };
        let read = |rows: Range<u64>| -> Vec<f32> {
            let mut out = vec![0; (rows.end - rows.start) as usize * 12];
            source.read(rows, &mut out).expect("is in memory");
            let (values, _) = out.as_chunks::<4>();
            values
                .iter()
                .map(|&bytes| f32::from_le_bytes(bytes))
                .collect()
        };
        let whole = read(0..8);
        assert_eq!(whole[..6], [0.0, 4.0, 8.0, 1.0, 5.0, 9.0]);
        assert_eq!(whole[12..15], [12.0, 16.0, 20.0]);
        for start in 0..8 {
            for end in start..8 {
                let expected = &whole[3 * start as usize..3 * end as usize];
                assert_eq!(read(start..end), expected, "{start}..{end}");
            }
        }
    }
}
