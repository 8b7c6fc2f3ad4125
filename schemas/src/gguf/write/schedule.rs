//! Order and size of the chunks in which tensor data is produced.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use indexmap::IndexMap;

use super::super::plan::Tensor;
use super::journal::Record;
use super::layout::FileLayout;
use super::{CHUNK_BYTES, Output};

/// Rows of one tensor, processed by a worker thread in one step.
pub(super) struct Chunk<'a> {
    /// Index of the output.
    pub(super) output: usize,
    /// Index of the tensor in the output.
    pub(super) tensor_index: usize,
    pub(super) tensor: &'a Tensor,
    pub(super) rows: Range<u64>,
    /// Offset in the output, in bytes.
    pub(super) offset: u64,
    /// Hash of the bytes, if an earlier run has written them.
    pub(super) recorded: Option<u64>,
}

impl Chunk<'_> {
    pub(super) fn size_bytes(&self) -> u64 {
        (self.rows.end - self.rows.start) * self.tensor.row_bytes()
    }
}

/// Group key: tensors computed from the same data have the same.
#[derive(PartialEq, Eq, Hash)]
enum Input {
    /// File and offset of their first row.
    File(PathBuf, u64),
    /// Unknown input: indices of the output and the tensor.
    Own(usize, usize),
}

/// A tensor and its offset in an output.
struct Placed<'a> {
    output: usize,
    tensor_index: usize,
    tensor: &'a Tensor,
    offset: u64,
}

/// Returns all rows of all outputs in chunks of whole rows, of about `chunk_bytes`.
///
/// Tensors keep the order of the first output that has them; the same rows of tensors with the same
/// input follow one another. Recorded chunks keep their boundaries.
pub(super) fn chunks<'a>(
    outputs: &[Output<'a>],
    layouts: &[FileLayout],
    chunk_bytes: u64,
    records: Vec<Record>,
) -> Vec<Chunk<'a>> {
    let mut done: HashMap<(usize, usize), Vec<Record>> = HashMap::new();
    for record in records {
        let tensor = (record.output, record.tensor);
        done.entry(tensor).or_default().push(record);
    }
    let mut groups: IndexMap<Input, Vec<Placed<'a>>> = IndexMap::new();
    for (output, (&Output { plan, .. }, layout)) in outputs.iter().zip(layouts).enumerate() {
        for (i, (tensor, &offset)) in plan.tensors.iter().zip(&layout.offsets).enumerate() {
            let input = match tensor.source.input(0) {
                Some(place) => Input::File(place.path.to_path_buf(), place.offset),
                None => Input::Own(output, i),
            };
            groups.entry(input).or_default().push(Placed {
                output,
                tensor_index: i,
                tensor,
                offset,
            });
        }
    }
    groups
        .values()
        .flat_map(|group| group_chunks(group, chunk_bytes, &done))
        .collect()
}

fn group_chunks<'a>(
    group: &[Placed<'a>],
    chunk_bytes: u64,
    done: &HashMap<(usize, usize), Vec<Record>>,
) -> Vec<Chunk<'a>> {
    let longest = group.iter().map(|placed| placed.tensor.row_bytes()).max();
    // All tensors of a group are cut at the same rows, so the one with the longest rows decides.
    let step = (chunk_bytes / longest.unwrap_or(1)).max(1);
    let mut chunks = Vec::new();
    for placed in group {
        let mut push = |rows: Range<u64>, recorded| {
            chunks.push(Chunk {
                output: placed.output,
                tensor_index: placed.tensor_index,
                tensor: placed.tensor,
                offset: placed.offset + rows.start * placed.tensor.row_bytes(),
                rows,
                recorded,
            });
        };
        let n_rows = placed.tensor.n_rows();
        let records = done.get(&(placed.output, placed.tensor_index));
        let records = usable(records.map_or(&[], Vec::as_slice), placed.tensor);
        let mut row = 0;
        for record in records {
            pieces(row..record.rows.start, step).for_each(|rows| push(rows, None));
            row = record.rows.end;
            push(record.rows.clone(), Some(record.hash));
        }
        pieces(row..n_rows, step).for_each(|rows| push(rows, None));
    }
    chunks.sort_by_key(|chunk| chunk.rows.start);
    chunks
}

/// Splits rows into ranges of at most `step`.
fn pieces(rows: Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = rows;
    let mut next = start;
    std::iter::from_fn(move || {
        let piece = next..next.saturating_add(step).min(end);
        next = piece.end;
        (piece.start < end).then_some(piece)
    })
}

/// Returns the records that are valid for a tensor, sorted and without overlaps, none larger than a
/// chunk may be. A journal is an untrusted file.
fn usable<'a>(records: &'a [Record], tensor: &Tensor) -> Vec<&'a Record> {
    let (n_rows, row_bytes) = (tensor.n_rows(), tensor.row_bytes());
    let fits = |record: &&Record| {
        let Range { start, end } = record.rows;
        let is_chunk = |n| n == 1 || n <= CHUNK_BYTES / row_bytes;
        start < end && end <= n_rows && is_chunk(end - start)
    };
    let mut records: Vec<&Record> = records.iter().filter(fits).collect();
    // Of two records of the same rows, the later one describes the current bytes.
    records.reverse();
    records.sort_by_key(|record| record.rows.start);
    let mut end = 0;
    records.retain(|record| {
        let is_after = record.rows.start >= end;
        if is_after {
            end = record.rows.end;
        }
        is_after
    });
    records
}
