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
    #[error("tensor {tensor}: requantizing from {from} to {to} is not allowed")]
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
    /// The importance matrix is of another model.
    #[error(
        "tensor {tensor}: expected {expected} values in the importance matrix, found {found}; \
         it is of another model, or of other experts"
    )]
    ImatrixSize {
        /// The name.
        tensor: String,
        /// One for each column, and for each matrix of a stack.
        expected: u64,
        /// Values in the entry.
        found: usize,
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

/// Data that holds no finite number. The writer adds the tensor's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidData {
    /// Before or after quantization.
    pub stage: Stage,
    /// The type there.
    pub dtype: DType,
    /// Row, from 0, all matrices of a tensor taken together.
    pub row: u64,
    /// Block in the row, from 0.
    pub block: usize,
    /// What was found.
    pub kind: InvalidKind,
}

impl std::error::Error for InvalidData {}

impl fmt::Display for InvalidData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block_len = self.dtype.layout().map_or(1, |layout| layout.block_len);
        let block = if block_len == 1 { "element" } else { "block" };
        let kind = match self.kind {
            InvalidKind::Nan => "NaN",
            InvalidKind::Infinity => "infinity",
        };
        let stage = match self.stage {
            Stage::Source => "source",
            Stage::Result => "result",
        };
        write!(
            f,
            "row {}, {block} {}: {kind} in the {} {stage}",
            self.row, self.block, self.dtype
        )
    }
}
