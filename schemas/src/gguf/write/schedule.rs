//! In which order, and in what pieces, tensor data is produced.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use indexmap::IndexMap;

use super::super::plan::Tensor;
use super::journal::Record;
use super::layout::FileLayout;
use super::{CHUNK_BYTES, Output};

/// Some rows of one tensor: what a worker takes at a time.
pub(super) struct Chunk<'a> {
    /// Which of the outputs.
    pub(super) output: usize,
    /// Which of its tensors.
    pub(super) tensor_index: usize,
    pub(super) tensor: &'a Tensor,
    pub(super) rows: Range<u64>,
    /// Place in the output, in bytes from its start.
    pub(super) offset: u64,
    /// Hash of the bytes, if an earlier run has written them.
    pub(super) recorded: Option<u64>,
}

impl Chunk<'_> {
    pub(super) fn size_bytes(&self) -> u64 {
        (self.rows.end - self.rows.start) * self.tensor.row_bytes()
    }
}

/// What tensors have in common that are made of the same data.
#[derive(PartialEq, Eq, Hash)]
enum Input {
    /// Where their first row lies.
    File(PathBuf, u64),
    /// Nothing is known: output and tensor.
    Own(usize, usize),
}

/// A tensor and where it goes.
struct Placed<'a> {
    output: usize,
    tensor_index: usize,
    tensor: &'a Tensor,
    offset: u64,
}

/// All rows of all outputs in pieces of about `chunk_bytes`, whole rows each.
///
/// Tensors stay in the order of the first output that has them; the same rows of tensors that are
/// made of the same input follow each other. What `records` tell of is cut as it was then.
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
    // The same rows for all, as many as the one with the longest rows may take.
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

/// Cuts rows in pieces of at most `step`.
fn pieces(rows: Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = rows;
    let mut next = start;
    std::iter::from_fn(move || {
        let piece = next..next.saturating_add(step).min(end);
        next = piece.end;
        (piece.start < end).then_some(piece)
    })
}

/// Records of rows that the tensor has, in order and without overlap, none larger than a chunk
/// may be: a journal is a file like any other, and may say anything.
fn usable<'a>(records: &'a [Record], tensor: &Tensor) -> Vec<&'a Record> {
    let (n_rows, row_bytes) = (tensor.n_rows(), tensor.row_bytes());
    let fits = |record: &&Record| {
        let Range { start, end } = record.rows;
        let is_chunk = |n| n == 1 || n <= CHUNK_BYTES / row_bytes;
        start < end && end <= n_rows && is_chunk(end - start)
    };
    let mut records: Vec<&Record> = records.iter().filter(fits).collect();
    // Of two records of the same rows, the later one tells what is in the file now.
    records.reverse();
    records.sort_by_key(|record| record.rows.start);
    let mut end = 0;
    records.retain(|record| {
        let is_behind = record.rows.start >= end;
        if is_behind {
            end = record.rows.end;
        }
        is_behind
    });
    records
}
