//! A GGUF file that a command wrote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file that was written, or would be under `--dry-run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReport {
    /// Where; the first part of a split model.
    pub path: String,
    /// All parts of a split model, in order; empty for a file in one piece.
    pub parts: Vec<String>,
    /// Bytes of the file, or of all parts.
    pub size_bytes: u64,
    /// Tensors in it.
    pub n_tensors: u64,
    /// What the tensors are made of, the largest share first.
    pub types: Vec<TypeShare>,
}

/// The tensors of one element type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeShare {
    /// The type's ggml name, such as `Q4_K`; `type N` for an id that is not known.
    pub dtype: String,
    /// Tensors of it.
    pub n_tensors: u64,
    /// Elements in them.
    pub n_elements: u64,
    /// Bytes of their data, without padding.
    pub size_bytes: u64,
}

/// What a command copied from its inputs without looking at it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyReport {
    /// Bytes of tensor data that the kernel copied from file to file.
    pub by_kernel_bytes: u64,
    /// Of these, bytes in blocks that the file system shares between the files now.
    pub shared_bytes: u64,
}
