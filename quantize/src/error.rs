//! Errors of quantization.

use std::fmt;

use kernels::types::InvalidKind;
use schemas::gguf::{DType, KeyError, SizeError};

use crate::ftype::FType;

/// An error that is found before any weight is read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A key that the mix depends on is missing or mistyped.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// The type depends on the layer, and the tensor's name has no valid layer.
    #[error("tensor {tensor}: expected a name that starts with blk.N., N below {n_layer}")]
    Layer {
        /// Name of the tensor.
        tensor: String,
        /// Number of layers, from the keys.
        n_layer: u32,
    },
    /// The source tensor is already quantized.
    #[error(
        "tensor {tensor}: requantizing from {from} to {to} loses more than quantizing the original"
    )]
    Requantize {
        /// Name of the tensor.
        tensor: String,
        /// Type in the source.
        from: DType,
        /// Type it would get.
        to: DType,
    },
    /// The source's type cannot be decoded.
    #[error("tensor {tensor}: cannot decode {from}, which is needed to write {to}")]
    NoDecoder {
        /// Name of the tensor.
        tensor: String,
        /// Type in the source.
        from: DType,
        /// Type it would get.
        to: DType,
    },
    /// The pattern exceeds the backtracking limit.
    #[error("tensor {tensor}: pattern {pattern:?}: {reason}; use a simpler one")]
    Pattern {
        /// Name of the tensor.
        tensor: String,
        /// Pattern of the rule.
        pattern: String,
        /// The limit that was exceeded.
        reason: String,
    },
    /// A layer to prune does not exist.
    #[error("layer {layer} cannot be pruned: the file has the layers {found}")]
    NoLayer {
        /// Number of the layer, from 0.
        layer: u32,
        /// First and last layer, as text.
        found: String,
    },
    /// No layer would be left.
    #[error("all {n_layer} layers of the file would be pruned, expected at least one to remain")]
    NoLayerLeft {
        /// Number of layers in the file.
        n_layer: usize,
    },
    /// A type for the MTP head was given, but the model has no MTP head.
    #[error("a type was set for the MTP head, but the file has no MTP head")]
    NoMtp,
    /// The type has so few bits that it requires an importance matrix.
    #[error(
        "tensor {}: {to} requires an importance matrix with an entry for the tensor when the file type is {ftype}",
        listed(tensors)
    )]
    NeedsImatrix {
        /// Names of all tensors without an entry.
        tensors: Vec<String>,
        /// Type they would get.
        to: DType,
        /// The file type.
        ftype: FType,
    },
    /// The importance matrix is of another model: a name matches, but its size does not.
    #[error(
        "tensor {tensor}: expected {expected} values in the importance matrix, found {found}; \
         it belongs to another model, or to other experts: {n_fit} of its {n_entries} entries match"
    )]
    ImatrixSize {
        /// Name of the tensor.
        tensor: String,
        /// Expected number of values: one per column, for each matrix of a stack.
        expected: u64,
        /// Number of values in the entry.
        found: usize,
        /// Number of entries that match a tensor in name and size.
        n_fit: usize,
        /// Number of all entries.
        n_entries: usize,
    },
    /// The importance matrix is of another model: no name matches.
    #[error(
        "none of the importance matrix's {n_entries} entries, such as {entry}, is for a tensor \
         that could use it, such as {tensor}; it belongs to another model"
    )]
    ImatrixNames {
        /// Number of all entries.
        n_entries: usize,
        /// Name of one entry.
        entry: String,
        /// A tensor without an entry.
        tensor: String,
    },
    /// An importance value is negative or not finite; it is a mean of squares.
    #[error(
        "importance matrix, entry {entry}, value {index}: expected a finite number of at least 0, \
         found {found}; measure it again, or exclude the entry"
    )]
    ImatrixValue {
        /// Name of the weight.
        entry: String,
        /// Index of the value in the entry, from 0.
        index: usize,
        /// The value, as text.
        found: String,
    },
    /// The row length is not a multiple of the type's block length, and no other type is like it.
    #[error(
        "tensor {tensor}: rows of {n_columns} elements are not a multiple of the {} of a block of {to}; \
         give it another type",
        to.layout().map_or(1, |layout| layout.block_len)
    )]
    Unfit {
        /// Name of the tensor.
        tensor: String,
        /// Type it would get.
        to: DType,
        /// Elements per row.
        n_columns: u64,
    },
    /// The size of the result in bytes overflows.
    #[error("tensor {tensor}: {source}")]
    Size {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: SizeError,
    },
}

/// Formats names for an error: the first few, and the number of others.
fn listed(names: &[String]) -> String {
    const MAX: usize = 3;
    let first = names[..names.len().min(MAX)].join(", ");
    match names.len().saturating_sub(MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The side of quantization on which data is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The data that was read.
    Source,
    /// The quantized data: values were too large for the type.
    Result,
}

/// A block with a NaN or an infinity. The writer adds the file and the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidData {
    /// Before or after quantization.
    pub stage: Stage,
    /// Element type at that stage.
    pub dtype: DType,
    /// Row from 0, counted over all matrices of a tensor.
    pub row: u64,
    /// Elements in a row.
    pub n_columns: u64,
    /// Block in the row, from 0.
    pub block: u64,
    /// NaN or infinity.
    pub kind: InvalidKind,
}

impl std::error::Error for InvalidData {}

impl fmt::Display for InvalidData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            InvalidKind::Nan => "NaN",
            InvalidKind::Infinity => "infinity",
        };
        let dtype = self.dtype;
        match self.stage {
            Stage::Source => write!(f, "{kind} in the {dtype} source")?,
            Stage::Result => {
                write!(f, "values that {dtype} cannot hold ({kind} in the result)")?;
            }
        }
        let block_len = dtype.layout().map_or(1, |layout| layout.block_len);
        let (row, column) = (self.row, self.block * block_len);
        let element = row * self.n_columns + column;
        match block_len {
            1 => write!(f, ", element {element} (row {row}, column {column})"),
            n => write!(
                f,
                ", elements {element} to {} (row {row}, columns {column} to {})",
                element + n - 1,
                column + n - 1
            ),
        }
    }
}
