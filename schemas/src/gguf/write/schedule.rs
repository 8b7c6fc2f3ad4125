//! In which order, and in what pieces, tensor data is produced.

use std::ops::Range;
use std::path::PathBuf;

use indexmap::IndexMap;

use super::super::plan::Tensor;
use super::Output;
use super::layout::FileLayout;

/// Some rows of one tensor: what a worker takes at a time.
pub(super) struct Chunk<'a> {
    /// Which of the outputs.
    pub(super) output: usize,
    pub(super) tensor: &'a Tensor,
    pub(super) rows: Range<u64>,
    /// Place in the output, in bytes from its start.
    pub(super) offset: u64,
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
    tensor: &'a Tensor,
    offset: u64,
}

/// All rows of all outputs in pieces of about `chunk_bytes`, whole rows each.
///
/// Tensors stay in the order of the first output that has them; the same rows of tensors that are
/// made of the same input follow each other.
pub(super) fn chunks<'a>(
    outputs: &[Output<'a>],
    layouts: &[FileLayout],
    chunk_bytes: u64,
) -> Vec<Chunk<'a>> {
    let mut groups: IndexMap<Input, Vec<Placed<'a>>> = IndexMap::new();
    for (output, (&Output { plan, .. }, layout)) in outputs.iter().zip(layouts).enumerate() {
        for (i, (tensor, &offset)) in plan.tensors.iter().zip(&layout.offsets).enumerate() {
            let input = match tensor.source.input(0) {
                Some(place) => Input::File(place.path.to_path_buf(), place.offset),
                None => Input::Own(output, i),
            };
            groups.entry(input).or_default().push(Placed {
                output,
                tensor,
                offset,
            });
        }
    }
    groups
        .values()
        .flat_map(|group| group_chunks(group, chunk_bytes))
        .collect()
}

fn group_chunks<'a>(group: &[Placed<'a>], chunk_bytes: u64) -> Vec<Chunk<'a>> {
    let longest = group.iter().map(|placed| placed.tensor.row_bytes()).max();
    // The same rows for all, as many as the one with the longest rows may take.
    let step = (chunk_bytes / longest.unwrap_or(1)).max(1);
    let mut chunks = Vec::new();
    for placed in group {
        let n_rows = placed.tensor.n_rows();
        let mut row = 0;
        while row < n_rows {
            let rows = row..(row + step).min(n_rows);
            row = rows.end;
            chunks.push(Chunk {
                output: placed.output,
                tensor: placed.tensor,
                offset: placed.offset + rows.start * placed.tensor.row_bytes(),
                rows,
            });
        }
    }
    chunks.sort_by_key(|chunk| chunk.rows.start);
    chunks
}
