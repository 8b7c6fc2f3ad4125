//! Why a model cannot be quantized.

use std::fmt;

use kernels::quant::InvalidKind;
use schemas::gguf::{DType, KeyError, SizeError};

use crate::ftype::FType;

/// Why a model cannot be quantized, known before any weight is read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A key that decides on types is missing or mistyped.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// The type depends on the layer, and the name tells none.
    #[error("tensor {tensor}: expected blk.N. in front of the name, N below {n_layer}")]
    Layer {
        /// The name.
        tensor: String,
        /// Layers by the keys.
        n_layer: u32,
    },
    /// The source is quantized already.
    #[error(
        "tensor {tensor}: requantizing from {from} to {to} is not allowed, as it loses more than \
         quantizing the original; allow it, or take a source of 16 or 32 bits"
    )]
    Requantize {
        /// The name.
        tensor: String,
        /// Its type.
        from: DType,
        /// The type that it was to get.
        to: DType,
    },
    /// Numbers of the source's type cannot be decoded.
    #[error("tensor {tensor}: cannot decode {from} to make {to}")]
    NoDecoder {
        /// The name.
        tensor: String,
        /// Its type.
        from: DType,
        /// The type that it was to get.
        to: DType,
    },
    /// A pattern backtracks without end.
    #[error("tensor {tensor}: pattern {pattern:?}: {reason}; use a simpler one")]
    Pattern {
        /// The name.
        tensor: String,
        /// The pattern of the rule.
        pattern: String,
        /// Why it was given up.
        reason: String,
    },
    /// A layer to leave out that is not there.
    #[error("layer {layer} cannot be pruned: the file has the layers {found}")]
    NoLayer {
        /// Number of the layer, from 0.
        layer: u32,
        /// The first and the last one, as text.
        found: String,
    },
    /// Nothing would be left.
    #[error("all {n_layer} layers of the file would be pruned, expected some to be left")]
    NoLayerLeft {
        /// Layers in the file.
        n_layer: usize,
    },
    /// A type for the head of a model that has none.
    #[error("a type for the MTP head was asked for, and no tensor belongs to one")]
    NoMtp,
    /// So few bits are useless where nobody says which weights matter.
    #[error(
        "tensor {}: {to} in a {ftype} file requires an importance matrix with an entry for it; \
         give one, or give such tensors another type",
        listed(tensors)
    )]
    NeedsImatrix {
        /// All names without an entry.
        tensors: Vec<String>,
        /// The type that they were to get.
        to: DType,
        /// The file type.
        ftype: FType,
    },
    /// The importance matrix is of another model: the names agree, the sizes do not.
    #[error(
        "tensor {tensor}: expected {expected} values in the importance matrix, found {found}; \
         it is of another model, or of other experts: {n_fit} of its {n_entries} entries fit"
    )]
    ImatrixSize {
        /// The name.
        tensor: String,
        /// One for each column, and for each matrix of a stack.
        expected: u64,
        /// Values in the entry.
        found: usize,
        /// Entries that fit a tensor in name and size.
        n_fit: usize,
        /// All entries.
        n_entries: usize,
    },
    /// The importance matrix is of another model: no names agree.
    #[error(
        "none of the importance matrix's {n_entries} entries, such as {entry}, is for a tensor \
         that could use it, such as {tensor}; it is of another model"
    )]
    ImatrixNames {
        /// All entries.
        n_entries: usize,
        /// One of them.
        entry: String,
        /// A tensor without one.
        tensor: String,
    },
    /// Importance is a mean of squares.
    #[error(
        "importance matrix, entry {entry}, value {index}: expected a finite number of at least 0, \
         found {found}; measure it again, or exclude the entry"
    )]
    ImatrixValue {
        /// Name of the weight.
        entry: String,
        /// Place in the entry, from 0.
        index: usize,
        /// The value, as text.
        found: String,
    },
    /// The result would be too large to count its bytes.
    #[error("tensor {tensor}: {source}")]
    Size {
        /// The name.
        tensor: String,
        /// Why.
        source: SizeError,
    },
}

/// Names in an error: the first few, and how many more.
fn listed(names: &[String]) -> String {
    const MAX: usize = 16;
    let first = names[..names.len().min(MAX)].join(", ");
    match names.len().saturating_sub(MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// On which side of quantization data is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the data that is read.
    Source,
    /// In the data that was made of it, as values were too large for the type.
    Result,
}

/// Data that holds no finite number. The writer adds the file and the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidData {
    /// Before or after quantization.
    pub stage: Stage,
    /// The type there.
    pub dtype: DType,
    /// Row, from 0, all matrices of a tensor taken together.
    pub row: u64,
    /// Elements in a row.
    pub n_columns: u64,
    /// Block in the row, from 0.
    pub block: u64,
    /// What was found.
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
