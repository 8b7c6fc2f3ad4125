//! Results of `specconv hash`, and the manifest that `--manifest` writes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SourceReport, Verdict};

/// Result of hashing files or of checking them against a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "hash")]
pub struct HashReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Hash function of `data` and `tensors`: `sha256` or `xxh64`.
    pub algorithm: String,
    /// Hashes of each file; each shard of a split model has its own entry.
    pub files: Vec<HashedFile>,
    /// Differences from the manifest; empty without a manifest.
    pub differences: Vec<String>,
    /// Fail if there are differences.
    pub verdict: Verdict,
}

/// Origin and hashes of the files that a command wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "manifest")]
pub struct ManifestReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Name and version of the program.
    pub made_by: String,
    /// Options that affect the output bytes.
    pub options: String,
    /// Hub repositories that were read, with their commits.
    pub sources: Vec<SourceReport>,
    /// Files that were read; for Hub repositories, all but the weights.
    pub inputs: Vec<HashedInput>,
    /// Hash function of `data` and `tensors` in `files`.
    pub algorithm: String,
    /// Files that were written; each shard of a split model has its own entry.
    pub files: Vec<HashedFile>,
}

/// Hash of an input file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashedInput {
    /// Path of the file.
    pub path: String,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// SHA-256 of the whole file, in hexadecimal.
    pub sha256: String,
}

/// Hashes of a GGUF file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashedFile {
    /// Path of the file.
    pub path: String,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// SHA-256 of the whole file, in hexadecimal.
    pub sha256: String,
    /// Hash of the data of all tensors, without padding and without keys.
    pub data: String,
    /// Hash of each tensor's data, in file order.
    pub tensors: Vec<HashedTensor>,
    /// Keys of the file that state the origin of the model, with their values.
    pub provenance: BTreeMap<String, String>,
}

/// Hash of a tensor's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashedTensor {
    /// Name of the tensor.
    pub name: String,
    /// Hash in hexadecimal.
    pub hash: String,
}
