//! Tensor data that is checked, or recoded, while it is read.

use std::ops::Range;

use kernels::quant::QuantType;
use schemas::gguf::{Place, RowError, Source, SourceError, Tensor};

use crate::error::{InvalidData, Stage};
use crate::imatrix::Importance;

/// A tensor's own data, refused where it holds no finite numbers.
pub(crate) struct Checked {
    pub(crate) inner: Tensor,
    pub(crate) codec: &'static dyn QuantType,
}

impl Source for Checked {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        self.inner.source.read(rows.clone(), out)?;
        let row_bytes = self.inner.row_bytes() as usize;
        for (row, bytes) in rows.zip(out.chunks_exact(row_bytes)) {
            check(self.codec, Stage::Source, row, bytes)?;
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<Place<'_>> {
        self.inner.source.input(row)
    }
}

/// A tensor in another element type. Holds one row at a time, however many are asked for.
pub(crate) struct Recoded {
    pub(crate) inner: Tensor,
    pub(crate) from: &'static dyn QuantType,
    pub(crate) to: &'static dyn QuantType,
    /// How much the columns matter, where that is known.
    pub(crate) importance: Option<Importance>,
    /// Bytes of a row of the result.
    pub(crate) row_bytes: u64,
}

impl Source for Recoded {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let mut bytes = vec![0; self.inner.row_bytes() as usize];
        let mut x = vec![0.0; self.inner.ne0() as usize];
        for (row, out) in rows.zip(out.chunks_exact_mut(self.row_bytes as usize)) {
            self.inner.source.read(row..row + 1, &mut bytes)?;
            check(self.from, Stage::Source, row, &bytes)?;
            self.from.dequantize(&bytes, &mut x);
            let weights = self.importance.as_ref().map(|all| all.row(row));
            self.to.quantize_row(&x, weights, out);
            check(self.to, Stage::Result, row, out)?;
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<Place<'_>> {
        self.inner.source.input(row)
    }
}

fn check(codec: &dyn QuantType, stage: Stage, row: u64, bytes: &[u8]) -> Result<(), RowError> {
    let Some(invalid) = codec.find_invalid(bytes) else {
        return Ok(());
    };
    let error = InvalidData {
        stage,
        dtype: codec.dtype(),
        row,
        block: invalid.index,
        kind: invalid.kind,
    };
    Err(RowError {
        row,
        error: error.into(),
    })
}
