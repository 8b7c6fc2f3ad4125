//! [`Plan`]: what a GGUF file will be, with every size known before any byte is read.
//!
//! An opened file is a plan, a conversion makes one, quantize maps one to another, graft joins
//! two, split cuts one in two, and one writer streams any of them. Nothing is read until the
//! writer (or the runner) asks a tensor's source for rows.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dtype::DType;
use super::metadata::Metadata;
use super::read::ReadError;

/// Why a source could not produce its rows.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// A source's error that is about one row. Who asked for rows can then say where that one lies in
/// the input ([`Source::input`]).
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RowError {
    /// The row, from 0.
    pub row: u64,
    /// What is wrong with it; names row and element itself.
    pub error: SourceError,
}

/// Bytes of a source where they lie in an open file.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The file's name when it was opened.
    pub path: &'a Path,
    /// The file.
    pub file: &'a File,
    /// First byte, from the start of the file.
    pub offset: u64,
}

/// A place in an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The file.
    pub path: &'a Path,
    /// Bytes from the start of the file.
    pub offset: u64,
}

/// Bytes of a file that a source reads, as they are or to compute from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file.
    pub path: PathBuf,
    /// Its bytes.
    pub range: Range<u64>,
}

/// Produces the bytes of one tensor, any rows of it, from any thread, as often as asked.
pub trait Source: Send + Sync {
    /// Fills `out` with the given rows, in the tensor's element type; `out` holds just those.
    ///
    /// # Errors
    /// The bytes cannot be read, or are not what they should be (a NaN where none may be): a
    /// [`RowError`] where one row is to blame.
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError>;

    /// The whole tensor, where it already lies in memory.
    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    /// Some of [`Source::bytes`] will hardly be read again, and need not stay in memory.
    fn let_go(&self, bytes: Range<usize>) {
        let _ = bytes;
    }

    /// The place in a file that holds these very bytes, if there is one.
    fn origin(&self) -> Option<Origin<'_>> {
        None
    }

    /// Where in an input a row begins, or what it is made of. Sources that wrap another one pass
    /// this on: messages name the place, and tensors made of the same data are written together.
    fn input(&self, row: u64) -> Option<Place<'_>> {
        let _ = row;
        None
    }

    /// What it reads of files that may have to be fetched, so that this can be done beforehand
    /// and all at once. A source that wraps others gives theirs.
    fn extents(&self) -> Vec<Extent> {
        Vec::new()
    }

    /// Checks that the files this source reads have not changed since they were opened. A source that
    /// wraps others passes this on.
    ///
    /// # Errors
    /// A file has another size or modification time now.
    fn check_unchanged(&self) -> Result<(), ReadError> {
        Ok(())
    }
}

/// Bytes in memory are a source.
pub struct Owned {
    /// The tensor's bytes.
    pub bytes: Vec<u8>,
    /// Bytes of a row.
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
    /// Elements along each axis, the contiguous one first; 1 to 4 axes.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// Bytes of data, without the padding that follows it.
    pub size_bytes: u64,
    /// Where the data comes from.
    pub source: Arc<dyn Source>,
}

/// The size of a tensor that does not exist: its elements overflow, or its rows are not whole
/// blocks of its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The product of the axes does not fit.
    #[error("shape {shape:?} has more elements than fit in 63 bits")]
    Overflow {
        /// The shape.
        shape: Vec<u64>,
    },
    /// Blocks do not fill the row.
    #[error("rows of {ne0} elements are no whole number of {dtype} blocks of {block_len}")]
    PartialBlock {
        /// The type.
        dtype: DType,
        /// Elements in a row.
        ne0: u64,
        /// Elements in a block.
        block_len: u64,
    },
    /// The id is not in the table.
    #[error("element type id {} is unknown, so its size is too", .0.0)]
    UnknownType(DType),
}

/// Bytes of a tensor of that type and shape.
pub fn size_bytes(dtype: DType, shape: &[u64]) -> Result<u64, SizeError> {
    let overflow = || SizeError::Overflow {
        shape: shape.to_vec(),
    };
    // Also for a type that is not known: elements are counted all the same.
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

/// A shape without trailing axes of 1.
pub fn logical_shape(shape: &[u64]) -> &[u64] {
    let n = shape
        .iter()
        .rposition(|&ne| ne != 1)
        .map_or(1, |last| last + 1);
    &shape[..n.min(shape.len())]
}

impl Tensor {
    /// A tensor of a known type, sized by it.
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

    /// Elements in a row, the contiguous axis.
    pub fn ne0(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements in all.
    pub fn n_elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of one row: the unit in which sources are asked. A type that we do not know has no
    /// rows, so each byte counts as one.
    pub fn row_bytes(&self) -> u64 {
        self.dtype.row_bytes(self.ne0()).unwrap_or(1).max(1)
    }

    /// Rows in all.
    pub fn n_rows(&self) -> u64 {
        self.size_bytes / self.row_bytes()
    }

    /// Shape without trailing axes of 1: the peer's writers differ in keeping them.
    pub fn logical_shape(&self) -> &[u64] {
        let n = self
            .shape
            .iter()
            .rposition(|&ne| ne != 1)
            .map_or(1, |last| last + 1);
        &self.shape[..n.min(self.shape.len())]
    }

    /// The layer number in `blk.N.`, if the name has one.
    pub fn layer(&self) -> Option<u32> {
        self.name
            .strip_prefix("blk.")?
            .split('.')
            .next()?
            .parse()
            .ok()
    }

    /// All bytes, read into memory.
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

/// A GGUF file to be: metadata and tensors, both in the order they will be written.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Container version, 2 or 3; they differ in nothing we write.
    pub version: u32,
    /// Key-values.
    pub metadata: Metadata,
    /// Tensors.
    pub tensors: Vec<Tensor>,
}

/// Key of the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment where the key is absent, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Longest tensor name the peer reads, in bytes.
pub const MAX_NAME_LEN: usize = 63;

/// A plan that no reader would take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The alignment key is unusable.
    #[error("key general.alignment: expected a power of two as u32, found {found}")]
    Alignment {
        /// The value.
        found: String,
    },
    /// No reader would take the name.
    #[error("tensor {tensor:?}: name of {} bytes, expected 1 to {max}", .tensor.len())]
    NameLength {
        /// The name.
        tensor: String,
        /// Longest allowed.
        max: usize,
    },
    /// Two tensors share a name.
    #[error("tensor {tensor} appears twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// No axes, or too many.
    #[error("tensor {tensor}: {found} axes, expected 1 to 4")]
    Axes {
        /// The name.
        tensor: String,
        /// How many.
        found: usize,
    },
}

impl Plan {
    /// A version 3 plan without tensors.
    pub fn new(metadata: Metadata) -> Plan {
        Plan {
            version: 3,
            metadata,
            tensors: Vec::new(),
        }
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Checks that no file of the tensors has changed since it was opened.
    ///
    /// # Errors
    /// One has another size or modification time now.
    pub fn check_unchanged(&self) -> Result<(), ReadError> {
        self.tensors
            .iter()
            .try_for_each(|tensor| tensor.source.check_unchanged())
    }

    /// Elements of all tensors; as many as can be counted, should a file claim more.
    pub fn n_elements(&self) -> u64 {
        let counts = self.tensors.iter().map(Tensor::n_elements);
        counts.fold(0, u64::saturating_add)
    }

    /// Bytes of tensor data, without padding.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.size_bytes).sum()
    }

    /// Alignment of tensor data, in bytes.
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

    /// Refuses what no reader would take: names that repeat or are too long, shapes without axes
    /// or with more than four.
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
