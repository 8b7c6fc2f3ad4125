//! [`Plan`]: a GGUF file before it is written, with all sizes known before any data is read.
//!
//! Opening a file returns a plan, a conversion creates one, quantize maps a plan to another, graft
//! joins two, split cuts one in two, and one writer streams any of them. Data is read only when the
//! writer or the runner requests rows from a tensor's source.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dtype::DType;
use super::metadata::Metadata;
use super::read::ReadError;

/// Error of a source that cannot produce its rows.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Error of a source about one row. The caller can add the row's position in the input
/// ([`Source::input`]).
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RowError {
    /// Row index, from 0.
    pub row: u64,
    /// The cause; its message names row and element.
    pub error: SourceError,
}

/// Position of a source's bytes in an open file.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Path of the file when it was opened.
    pub path: &'a Path,
    /// The file.
    pub file: &'a File,
    /// Offset from the start of the file, in bytes.
    pub offset: u64,
}

/// A position in an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition<'a> {
    /// The file.
    pub path: &'a Path,
    /// Offset from the start of the file, in bytes.
    pub offset: u64,
}

/// Byte range of a file that a source reads, unmodified or to compute from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file.
    pub path: PathBuf,
    /// The byte range.
    pub range: Range<u64>,
}

/// Produces any rows of one tensor, from any thread, any number of times.
pub trait Source: Send + Sync {
    /// Fills `out` with the given rows, in the tensor's element type; `out` has exactly their size.
    ///
    /// # Errors
    /// The bytes cannot be read, or are invalid (such as a NaN): a [`RowError`] if one row is at
    /// fault.
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError>;

    /// Returns the whole tensor, if it is already in memory.
    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    /// Releases part of [`Source::bytes`] that is unlikely to be read again.
    fn release_pages(&self, bytes: Range<usize>) {
        let _ = bytes;
    }

    /// Returns the position in a file with the same bytes, if there is one.
    fn origin(&self) -> Option<Origin<'_>> {
        None
    }

    /// Returns the position in an input file of a row, or of the data it is computed from. Sources
    /// that wrap another one forward this: error messages name the position, and tensors computed
    /// from the same data are written together.
    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        let _ = row;
        None
    }

    /// Returns the byte ranges that the source reads of remote files, so that they can be
    /// prefetched. A source that wraps others returns theirs.
    fn extents(&self) -> Vec<Extent> {
        Vec::new()
    }

    /// Checks that the files this source reads have not changed since they were opened. A source
    /// that wraps others forwards this.
    ///
    /// # Errors
    /// The size or modification time of a file changed.
    fn check_unchanged(&self) -> Result<(), ReadError> {
        Ok(())
    }
}

/// A source of bytes in memory.
pub struct Owned {
    /// The tensor's bytes.
    pub bytes: Vec<u8>,
    /// Bytes per row.
    pub row_bytes: u64,
}

impl Source for Owned {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let start = (rows.start * self.row_bytes) as usize;
        out.copy_from_slice(&self.bytes[start..start + out.len()]);
        Ok(())
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(&self.bytes)
    }
}

/// A tensor that will be written.
#[derive(Clone)]
pub struct Tensor {
    /// Full name, such as `blk.3.attn_q.weight`.
    pub name: String,
    /// Elements per dimension, the contiguous one first; 1 to 4 dimensions.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// Size of the data in bytes, without padding.
    pub size_bytes: u64,
    /// Source of the data.
    pub source: Arc<dyn Source>,
}

/// Error of computing a tensor's size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The number of elements overflows.
    #[error("shape {shape:?} has more elements than fit in 63 bits")]
    Overflow {
        /// The shape.
        shape: Vec<u64>,
    },
    /// The row length is not a multiple of the block length.
    #[error("rows of {ne0} elements are not a multiple of {dtype} blocks of {block_len}")]
    PartialBlock {
        /// The type.
        dtype: DType,
        /// Elements per row.
        ne0: u64,
        /// Elements per block.
        block_len: u64,
    },
    /// The element type is unknown.
    #[error("element type id {} is unknown, so its size is too", .0.0)]
    UnknownType(DType),
}

/// Returns the size in bytes of a tensor of a type and shape.
pub fn size_bytes(dtype: DType, shape: &[u64]) -> Result<u64, SizeError> {
    let overflow = || SizeError::Overflow {
        shape: shape.to_vec(),
    };
    // The number of elements must be valid for unknown types, too.
    shape
        .iter()
        .try_fold(1u64, |n, &ne| n.checked_mul(ne))
        .filter(|&n| n <= i64::MAX as u64)
        .ok_or_else(overflow)?;
    let layout = dtype.layout().ok_or(SizeError::UnknownType(dtype))?;
    let ne0 = shape.first().copied().unwrap_or(1);
    if !ne0.is_multiple_of(layout.block_len) {
        return Err(SizeError::PartialBlock {
            dtype,
            ne0,
            block_len: layout.block_len,
        });
    }
    let row_bytes = dtype.row_bytes(ne0).ok_or_else(overflow)?;
    shape[1.min(shape.len())..]
        .iter()
        .try_fold(row_bytes, |n, &ne| n.checked_mul(ne))
        .filter(|&n| n <= i64::MAX as u64)
        .ok_or_else(overflow)
}

/// Returns a shape without trailing dimensions of 1.
pub fn logical_shape(shape: &[u64]) -> &[u64] {
    let n = shape
        .iter()
        .rposition(|&ne| ne != 1)
        .map_or(1, |last| last + 1);
    &shape[..n.min(shape.len())]
}

impl Tensor {
    /// Creates a tensor of a known type; its size follows from type and shape.
    pub fn new(
        name: impl Into<String>,
        shape: Vec<u64>,
        dtype: DType,
        source: Arc<dyn Source>,
    ) -> Result<Tensor, SizeError> {
        let size_bytes = size_bytes(dtype, &shape)?;
        Ok(Tensor {
            name: name.into(),
            shape,
            dtype,
            size_bytes,
            source,
        })
    }

    /// Returns the elements per row (the contiguous dimension).
    pub fn ne0(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Returns the bytes per row, the unit of [`Source::read`]. Unknown types have no rows, so each
    /// byte counts as one row.
    pub fn row_bytes(&self) -> u64 {
        self.dtype.row_bytes(self.ne0()).unwrap_or(1).max(1)
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> u64 {
        self.size_bytes / self.row_bytes()
    }

    /// Returns the shape without trailing dimensions of 1, which llama.cpp's writers do not keep
    /// consistently.
    pub fn logical_shape(&self) -> &[u64] {
        logical_shape(&self.shape)
    }

    /// Returns the layer number `N` if the name starts with `blk.N.`.
    pub fn layer(&self) -> Option<u32> {
        self.name
            .strip_prefix("blk.")?
            .split('.')
            .next()?
            .parse()
            .ok()
    }

    /// Reads all bytes into memory.
    pub fn read_all(&self) -> Result<Vec<u8>, SourceError> {
        let mut out = vec![0; self.size_bytes as usize];
        self.source.read(0..self.n_rows(), &mut out)?;
        Ok(out)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.dtype, self.shape)
    }
}

/// A GGUF file to write: metadata and tensors, both in file order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Container version, 2 or 3; otherwise identical in everything we write.
    pub version: u32,
    /// Key-values.
    pub metadata: Metadata,
    /// Tensors.
    pub tensors: Vec<Tensor>,
}

/// Key of the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment if the key is absent, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Maximum length of a tensor name that llama.cpp reads, in bytes.
pub const MAX_NAME_LEN: usize = 63;

/// Error of a plan that no reader would accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The value of the alignment key is invalid.
    #[error("key general.alignment: expected a power of two as u32, found {found}")]
    Alignment {
        /// The value.
        found: String,
    },
    /// The name is empty or too long.
    #[error("tensor {tensor:?}: name of {} bytes, expected 1 to {max}", .tensor.len())]
    NameLength {
        /// The name.
        tensor: String,
        /// Maximum length.
        max: usize,
    },
    /// Two tensors share a name.
    #[error("tensor {tensor} appears twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// The tensor has no dimensions, or too many.
    #[error("tensor {tensor}: {found} dimensions, expected 1 to 4")]
    Axes {
        /// The name.
        tensor: String,
        /// Number of dimensions.
        found: usize,
    },
}

impl Plan {
    /// Creates a version 3 plan without tensors.
    pub fn new(metadata: Metadata) -> Plan {
        Plan {
            version: 3,
            metadata,
            tensors: Vec::new(),
        }
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Checks that no file the tensors read has changed since it was opened.
    ///
    /// # Errors
    /// The size or modification time of a file changed.
    pub fn check_unchanged(&self) -> Result<(), ReadError> {
        self.tensors
            .iter()
            .try_for_each(|tensor| tensor.source.check_unchanged())
    }

    /// Returns the number of elements of all tensors; saturates at `u64::MAX`.
    pub fn n_elements(&self) -> u64 {
        let counts = self.tensors.iter().map(Tensor::n_elements);
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the bytes of tensor data, without padding.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.size_bytes).sum()
    }

    /// Returns the alignment of tensor data, in bytes.
    pub fn alignment(&self) -> Result<u64, PlanError> {
        match self.metadata.u32(ALIGNMENT_KEY) {
            Ok(None) => Ok(DEFAULT_ALIGNMENT),
            Ok(Some(n)) if n.is_power_of_two() => Ok(n.into()),
            _ => Err(PlanError::Alignment {
                found: self
                    .metadata
                    .get(ALIGNMENT_KEY)
                    .expect("was just read")
                    .to_string(),
            }),
        }
    }

    /// Fails if a name is repeated or too long, or a shape does not have one to four dimensions.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            let name = || tensor.name.clone();
            if tensor.name.len() > MAX_NAME_LEN || tensor.name.is_empty() {
                return Err(PlanError::NameLength {
                    tensor: name(),
                    max: MAX_NAME_LEN,
                });
            }
            if !names.insert(tensor.name.as_str()) {
                return Err(PlanError::DuplicateTensor { tensor: name() });
            }
            if tensor.shape.is_empty() || tensor.shape.len() > 4 {
                return Err(PlanError::Axes {
                    tensor: name(),
                    found: tensor.shape.len(),
                });
            }
        }
        Ok(())
    }
}
