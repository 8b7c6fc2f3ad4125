//! Joins the columns of several tensors.

use std::ops::Range;
use std::sync::Arc;

use kernels::types::Codec;
use schemas::gguf::{Extent, FilePosition, ReadError, RowError, Source, SourceError};

use crate::range::check_range;

/// The rows of several sources, side by side.
pub(crate) struct Joined {
    /// Sources with rows in F32.
    pub(crate) parts: Vec<Arc<dyn Source>>,
    /// Columns of each source.
    pub(crate) n_columns: usize,
    pub(crate) encoder: Codec,
}

impl Source for Joined {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        if rows.is_empty() {
            return Ok(());
        }
        let row_bytes = out.len() / (rows.end - rows.start) as usize;
        let mut bytes = vec![0; self.n_columns * size_of::<f32>()];
        let mut x = Vec::with_capacity(self.n_columns * self.parts.len());
        for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            x.clear();
            for part in &self.parts {
                part.read(row..row + 1, &mut bytes)?;
                let (values, _) = bytes.as_chunks::<4>();
                x.extend(values.iter().map(|&bytes| f32::from_le_bytes(bytes)));
            }
            check_range(&x, row, self.encoder.dtype()).map_err(|error| RowError {
                row,
                error: error.into(),
            })?;
            self.encoder.quantize(&x, None, out);
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        self.parts.first()?.input(row)
    }

    fn extents(&self) -> Vec<Extent> {
        self.parts.iter().flat_map(|part| part.extents()).collect()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        let mut parts = self.parts.iter();
        parts.try_for_each(|part| part.check_unchanged())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::types::codec;
    use schemas::gguf::{DType, Owned};

    #[test]
    fn columns_follow_each_other() {
        let part = |first: u32| -> Arc<dyn Source> {
            let bytes = (first..first + 4).flat_map(|i| (i as f32).to_le_bytes());
            let bytes = bytes.collect();
            Arc::new(Owned {
                bytes,
                row_bytes: 8,
            })
        };
        let joined = Joined {
            parts: vec![part(0), part(10)],
            n_columns: 2,
            encoder: codec(DType::F32).expect("has a codec"),
        };
        let mut out = vec![0; 32];
        joined.read(0..2, &mut out).expect("is in memory");
        let (values, _) = out.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|&x| f32::from_le_bytes(x)).collect();
        assert_eq!(values, [0.0, 1.0, 10.0, 11.0, 2.0, 3.0, 12.0, 13.0]);
    }
}
