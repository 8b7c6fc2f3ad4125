//! A GGUF file that a command wrote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file that was written, or would be under `--dry-run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReport {
    /// Path of the file, or of the first shard of a split model.
    pub path: String,
    /// Paths of all shards of a split model, in order; empty for a single file.
    pub parts: Vec<String>,
    /// Bytes of the file, or of all shards.
    pub size_bytes: u64,
    /// SHA-256 of the file, or of each shard; empty for `--dry-run` and for an edit in place.
    #[serde(default)]
    pub sha256: Vec<String>,
    /// Number of tensors.
    pub n_tensors: u64,
    /// Tensors by element type, the largest share first.
    pub types: Vec<TypeShare>,
}

/// The tensors of one element type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeShare {
    /// Name of the type in ggml, such as `Q4_K`; `type N` for an unknown id.
    pub dtype: String,
    /// Number of tensors of this type.
    pub n_tensors: u64,
    /// Number of their elements.
    pub n_elements: u64,
    /// Bytes of their data, without padding.
    pub size_bytes: u64,
}

/// Tensor data that a command copied from its inputs without reading it into memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyReport {
    /// Bytes of tensor data that the operating system's kernel copied from file to file.
    pub by_kernel_bytes: u64,
    /// Bytes of these whose blocks the files now share (reflinks).
    pub shared_bytes: u64,
}
