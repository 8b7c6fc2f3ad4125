//! The file that one shard writes.

use std::ops::Range;
use std::sync::Arc;

use crate::gguf::{
    ALIGNMENT_KEY, Array, FilePosition, Metadata, Origin, Plan, PlanError, ReadError, RowError,
    Source, SourceError, Tensor, Value, layout,
};

use super::Slice;

/// Key of the padding that aligns the data of a part like that of the file.
pub const PADDING: &str = "specconv.work.padding";

/// Block size with which file systems share blocks between files.
const BLOCK_BYTES: u64 = 4096;

/// Returns the file of one shard: the slices, named like their tensors. The part with the start of the first
/// tensor has the keys of the file. A part with all tensors is the file itself.
///
/// # Errors
/// No reader would accept the plan.
pub fn part(plan: &Plan, slices: &[Slice]) -> Result<Plan, PlanError> {
    let is_whole = slices.len() == plan.tensors.len()
        && (slices.iter().zip(&plan.tensors))
            .enumerate()
            .all(|(i, (slice, tensor))| slice.tensor == i && slice.rows == (0..tensor.n_rows()));
    if is_whole {
        return Ok(plan.clone());
    }
    let has_keys = slices
        .first()
        .is_some_and(|s| s.tensor == 0 && s.rows.start == 0);
    let mut metadata = match has_keys {
        true => plan.metadata.clone(),
        false => Metadata::new(),
    };
    if let (false, Some(alignment)) = (has_keys, plan.metadata.get(ALIGNMENT_KEY)) {
        metadata.set(ALIGNMENT_KEY, alignment.clone());
    }
    let tensors = slices.iter();
    let mut part = Plan {
        version: plan.version,
        metadata,
        tensors: tensors
            .map(|slice| rows_of(&plan.tensors[slice.tensor], &slice.rows))
            .collect(),
    };
    if let Some(first) = slices.first() {
        let tensor = &plan.tensors[first.tensor];
        let start = layout(plan)?.offsets[first.tensor] + first.rows.start * tensor.row_bytes();
        pad(&mut part, 0);
        let lacking = start.wrapping_sub(layout(&part)?.offsets[0]) % BLOCK_BYTES;
        pad(&mut part, lacking);
    }
    Ok(part)
}

fn pad(plan: &mut Plan, n_bytes: u64) {
    let zeros = Array::U8(vec![0; n_bytes as usize]);
    plan.metadata.set(PADDING, Value::Array(zeros));
}

/// Returns a tensor with some of the rows of another one.
fn rows_of(tensor: &Tensor, rows: &Range<u64>) -> Tensor {
    if *rows == (0..tensor.n_rows()) {
        return tensor.clone();
    }
    let (row_bytes, n_rows) = (tensor.row_bytes(), rows.end - rows.start);
    Tensor {
        name: tensor.name.clone(),
        shape: vec![tensor.ne0(), n_rows],
        dtype: tensor.dtype,
        size_bytes: n_rows * row_bytes,
        source: Arc::new(Rows {
            source: Arc::clone(&tensor.source),
            first: rows.start,
            n_rows,
            row_bytes,
        }),
    }
}

/// Some rows of another source.
struct Rows {
    source: Arc<dyn Source>,
    first: u64,
    n_rows: u64,
    row_bytes: u64,
}

impl Source for Rows {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let rows = rows.start + self.first..rows.end + self.first;
        let read = self.source.read(rows, out);
        read.map_err(|error| match error.downcast::<RowError>() {
            Ok(found) => {
                let row = found.row.saturating_sub(self.first);
                let error = found.error;
                RowError { row, error }.into()
            }
            Err(error) => error,
        })
    }

    fn bytes(&self) -> Option<&[u8]> {
        let start = (self.first * self.row_bytes) as usize;
        let end = start + (self.n_rows * self.row_bytes) as usize;
        self.source.bytes()?.get(start..end)
    }

    fn release_pages(&self, bytes: Range<usize>) {
        let start = (self.first * self.row_bytes) as usize;
        self.source
            .release_pages(bytes.start + start..bytes.end + start);
    }

    fn origin(&self) -> Option<Origin<'_>> {
        let origin = self.source.origin()?;
        Some(Origin {
            offset: origin.offset + self.first * self.row_bytes,
            ..origin
        })
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        self.source.input(row + self.first)
    }

    fn extents(&self) -> Vec<crate::gguf::Extent> {
        self.source.extents()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.source.check_unchanged()
    }
}
