//! Tensor data that is checked, or converted to another type, while it is read.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kernels::types::Codec;
use schemas::gguf::{Extent, FilePosition, ReadError, RowError, Source, SourceError, Tensor};

use crate::error::{InvalidData, Stage};
use crate::imatrix::Importance;
use crate::measure::{Measure, squared_error};

/// Input bytes per read: few system calls, and the data is still in the CPU's caches when it is
/// decoded.
const BATCH_BYTES: u64 = 256 << 10;

/// A tensor's own data; reading fails at NaN and infinity.
pub(crate) struct Checked {
    pub(crate) inner: Tensor,
    pub(crate) codec: Codec,
}

impl Source for Checked {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        self.inner.source.read(rows.clone(), out)?;
        let row_bytes = self.inner.row_bytes() as usize;
        for (row, bytes) in rows.zip(out.chunks_exact(row_bytes)) {
            check(self.codec, Stage::Source, &self.inner, row, bytes)?;
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        self.inner.source.input(row)
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.source.extents()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.inner.source.check_unchanged()
    }
}

/// A tensor converted to another element type. Memory is one batch of input and two f32 rows,
/// however many rows are requested.
pub(crate) struct Recoded {
    pub(crate) inner: Tensor,
    pub(crate) from: Codec,
    pub(crate) to: Codec,
    /// Importance of the columns, if known.
    pub(crate) importance: Option<Importance>,
    /// Bytes per row of the result.
    pub(crate) row_bytes: u64,
    pub(crate) measure: Arc<Measure>,
}

impl Source for Recoded {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let start = Instant::now();
        let n_rows = rows.end - rows.start;
        let (in_bytes, out_bytes) = (self.inner.row_bytes(), self.row_bytes as usize);
        let batch = (BATCH_BYTES / in_bytes).clamp(1, n_rows.max(1));
        let mut bytes = vec![0; (batch * in_bytes) as usize];
        let n_columns = self.inner.ne0() as usize;
        let (mut x, mut y) = (vec![0.0; n_columns], vec![0.0; n_columns]);
        let mut errors = Vec::with_capacity(n_rows as usize);
        let firsts = rows.clone().step_by(batch as usize);
        for (first, out) in firsts.zip(out.chunks_mut(batch as usize * out_bytes)) {
            let batch = first..(first + batch).min(rows.end);
            let bytes = &mut bytes[..((batch.end - batch.start) * in_bytes) as usize];
            self.inner.source.read(batch.clone(), bytes)?;
            let rows = bytes.chunks_exact(in_bytes as usize);
            for ((row, bytes), out) in batch.zip(rows).zip(out.chunks_exact_mut(out_bytes)) {
                check(self.from, Stage::Source, &self.inner, row, bytes)?;
                self.from.dequantize(bytes, &mut x);
                let weights = self.importance.as_ref().map(|all| all.row(row));
                self.to.quantize(&x, weights, out);
                check(self.to, Stage::Result, &self.inner, row, out)?;
                self.to.dequantize(out, &mut y);
                errors.push(squared_error(&x, &y));
            }
        }
        self.measure.add(rows.start, &errors, start.elapsed());
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        self.inner.source.input(row)
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.source.extents()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.inner.source.check_unchanged()
    }
}

fn check(
    codec: Codec,
    stage: Stage,
    tensor: &Tensor,
    row: u64,
    bytes: &[u8],
) -> Result<(), RowError> {
    let Some(invalid) = codec.find_invalid(bytes) else {
        return Ok(());
    };
    let error = InvalidData {
        stage,
        dtype: codec.dtype(),
        row,
        n_columns: tensor.ne0(),
        block: invalid.index as u64,
        kind: invalid.kind,
    };
    Err(RowError {
        row,
        error: error.into(),
    })
}
