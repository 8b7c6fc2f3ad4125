//! Joins the parts of all shards.

use std::ops::Range;
use std::sync::Arc;

use crate::gguf::{FilePosition, Metadata, Plan, ReadError, Source, SourceError, Tensor};

use super::{PADDING, Slice};

/// Name and shape of a tensor of a joined file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Full name.
    pub name: String,
    /// Elements per dimension, the contiguous one first.
    pub shape: Vec<u64>,
}

/// The part of one shard, opened.
pub struct PartFile<'a> {
    /// Its tensors and keys.
    pub plan: &'a Plan,
    /// The slices that it should have.
    pub slices: &'a [Slice],
}

/// A joined file.
pub enum Joined {
    /// One part has all tensors, so it is the file: index of the part.
    Whole(usize),
    /// The file is to be written.
    Parts(Plan),
}

/// Error of parts that do not make the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// A part has another number of tensors.
    #[error("{found} tensors, expected {expected}")]
    TensorCount {
        /// Index of the part.
        part: usize,
        /// Number of tensors of the part.
        found: usize,
        /// Number of its slices.
        expected: usize,
    },
    /// A tensor of a part is not the slice that belongs there.
    #[error(
        "tensor {found} with {found_rows} rows, expected {expected_rows} rows of tensor {expected}"
    )]
    Slice {
        /// Index of the part.
        part: usize,
        /// Name of the tensor.
        found: String,
        /// Its rows.
        found_rows: u64,
        /// Name of the expected tensor.
        expected: String,
        /// Expected rows.
        expected_rows: u64,
    },
    /// Rows are in no part, or in two.
    #[error(
        "tensor {tensor}: the parts have rows {found:?}, expected them to continue at row {expected}"
    )]
    Rows {
        /// Index of the part.
        part: usize,
        /// Name of the tensor.
        tensor: String,
        /// Rows of the next part.
        found: Range<u64>,
        /// First row that is expected.
        expected: u64,
    },
    /// A tensor is in no part.
    #[error("tensor {tensor} is in no part")]
    Missing {
        /// Name of the tensor.
        tensor: String,
    },
}

impl JoinError {
    /// Returns the index of the part that is wrong.
    pub fn part(&self) -> Option<usize> {
        match self {
            JoinError::TensorCount { part, .. }
            | JoinError::Slice { part, .. }
            | JoinError::Rows { part, .. } => Some(*part),
            JoinError::Missing { .. } => None,
        }
    }
}

/// Joins the parts of one file, in the order of the shards.
///
/// # Errors
/// A part has other tensors than its slices, or rows are missing or in two parts.
pub fn join(tensors: &[TensorShape], parts: &[PartFile<'_>]) -> Result<Joined, JoinError> {
    let mut pieces: Vec<Vec<Piece>> = tensors.iter().map(|_| Vec::new()).collect();
    let mut metadata = Metadata::new();
    let mut version = 3;
    for (index, part) in parts.iter().enumerate() {
        let (found, expected) = (part.plan.tensors.len(), part.slices.len());
        if found != expected {
            return Err(JoinError::TensorCount {
                part: index,
                found,
                expected,
            });
        }
        for (tensor, slice) in part.plan.tensors.iter().zip(part.slices) {
            let expected = tensors.get(slice.tensor).map_or("", |t| &t.name);
            let n_rows = slice.rows.end.saturating_sub(slice.rows.start);
            if tensor.name != expected || tensor.n_rows() != n_rows {
                return Err(JoinError::Slice {
                    part: index,
                    found: tensor.name.clone(),
                    found_rows: tensor.n_rows(),
                    expected: expected.to_owned(),
                    expected_rows: n_rows,
                });
            }
            let pieces = &mut pieces[slice.tensor];
            let next = pieces.last().map_or(0, |piece| piece.rows.end);
            if slice.rows.start != next {
                return Err(JoinError::Rows {
                    part: index,
                    tensor: tensor.name.clone(),
                    found: slice.rows.clone(),
                    expected: next,
                });
            }
            pieces.push(Piece {
                rows: slice.rows.clone(),
                tensor: tensor.clone(),
            });
        }
        if part
            .slices
            .first()
            .is_none_or(|s| s.tensor == 0 && s.rows.start == 0)
        {
            metadata = part.plan.metadata.clone();
            version = part.plan.version;
        }
    }
    let is_whole = pieces.iter().all(|pieces| pieces.len() == 1);
    if let (true, [only]) = (is_whole, parts)
        && !only.plan.metadata.contains(PADDING)
    {
        return Ok(Joined::Whole(0));
    }
    metadata.remove(PADDING);
    let mut plan = Plan {
        version,
        metadata,
        tensors: Vec::with_capacity(tensors.len()),
    };
    for (expected, pieces) in tensors.iter().zip(pieces) {
        plan.tensors.push(whole(expected, pieces)?);
    }
    Ok(Joined::Parts(plan))
}

/// Some rows of a tensor, as the tensor of a part.
struct Piece {
    rows: Range<u64>,
    tensor: Tensor,
}

fn whole(expected: &TensorShape, mut pieces: Vec<Piece>) -> Result<Tensor, JoinError> {
    let missing = || JoinError::Missing {
        tensor: expected.name.clone(),
    };
    let first = pieces.first().ok_or_else(missing)?.tensor.clone();
    let row_bytes = first.row_bytes();
    Ok(Tensor {
        name: first.name.clone(),
        shape: expected.shape.clone(),
        dtype: first.dtype,
        size_bytes: pieces.iter().map(|piece| piece.tensor.size_bytes).sum(),
        source: match pieces.len() {
            1 => pieces.remove(0).tensor.source,
            _ => Arc::new(Pieces { row_bytes, pieces }),
        },
    })
}

/// Rows from several sources.
struct Pieces {
    row_bytes: u64,
    pieces: Vec<Piece>,
}

impl Source for Pieces {
    fn read(&self, rows: Range<u64>, mut out: &mut [u8]) -> Result<(), SourceError> {
        for Piece { rows: own, tensor } in &self.pieces {
            let (start, end) = (rows.start.max(own.start), rows.end.min(own.end));
            if start < end {
                let n_bytes = ((end - start) * self.row_bytes) as usize;
                let (now, rest) = out.split_at_mut(n_bytes);
                let source = &tensor.source;
                source.read(start - own.start..end - own.start, now)?;
                out = rest;
            }
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        let piece = self.pieces.iter().find(|piece| piece.rows.contains(&row))?;
        piece.tensor.source.input(row - piece.rows.start)
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        let mut pieces = self.pieces.iter();
        pieces.try_for_each(|piece| piece.tensor.source.check_unchanged())
    }
}
