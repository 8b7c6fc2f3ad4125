//! Integers of a checkpoint, which a file stores as I32.

use std::ops::Range;

use safetensors::Dtype;
use schemas::gguf::{Extent, FilePosition, ReadError, RowError, Source, SourceError};

use crate::checkpoint::StoredTensor;
use crate::error::Error;

/// A tensor of integers that are at least 0 and less than a limit.
pub(crate) struct Indices {
    stored: StoredTensor,
    n_columns: usize,
    /// Bytes of a stored integer.
    width: usize,
    below: u64,
}

/// An integer beyond the limit.
#[derive(Debug, thiserror::Error)]
#[error("row {row}, column {column}: {found}, expected 0 to {}; the checkpoint is broken", below - 1)]
struct OutOfRange {
    row: u64,
    column: usize,
    found: i64,
    below: u64,
}

impl Indices {
    /// Returns the source of a tensor with `n_columns` integers per row.
    ///
    /// # Errors
    /// The elements are not integers.
    pub(crate) fn new(stored: &StoredTensor, n_columns: u64, below: u64) -> Result<Indices, Error> {
        let width = match stored.dtype {
            Dtype::I64 => 8,
            Dtype::I32 => 4,
            found => {
                return Err(Error::IntegerType {
                    path: stored.path(),
                    tensor: stored.name.clone(),
                    found,
                });
            }
        };
        Ok(Indices {
            stored: stored.clone(),
            n_columns: n_columns as usize,
            width,
            below,
        })
    }

    fn row_bytes(&self) -> u64 {
        (self.n_columns * self.width) as u64
    }
}

impl Source for Indices {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let row_bytes = self.row_bytes() as usize;
        let n_rows = rows.end.saturating_sub(rows.start) as usize;
        let mut stored = vec![0; n_rows * row_bytes];
        let offset = rows.start * self.row_bytes();
        self.stored.data.read_at(offset, &mut stored)?;
        let stored = stored.chunks_exact(row_bytes);
        let out = out.chunks_exact_mut(self.n_columns * size_of::<i32>());
        for (row, (stored, out)) in rows.zip(stored.zip(out)) {
            let integers = stored.chunks_exact(self.width).zip(out.chunks_exact_mut(4));
            for (column, (bytes, out)) in integers.enumerate() {
                let found = match bytes.first_chunk::<8>() {
                    Some(&bytes) => i64::from_le_bytes(bytes),
                    None => i32::from_le_bytes(*bytes.first_chunk().expect("has 4 bytes")).into(),
                };
                let index = i32::try_from(found).ok();
                let index = index.filter(|&i| u64::try_from(i).is_ok_and(|i| i < self.below));
                let Some(index) = index else {
                    let below = self.below;
                    let error = OutOfRange {
                        row,
                        column,
                        found,
                        below,
                    };
                    let error = error.into();
                    return Err(RowError { row, error }.into());
                };
                out.copy_from_slice(&index.to_le_bytes());
            }
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        Some(self.stored.data.position(row * self.row_bytes()))
    }

    fn extents(&self) -> Vec<Extent> {
        vec![self.stored.data.extent()]
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.stored.data.check_unchanged()
    }
}
