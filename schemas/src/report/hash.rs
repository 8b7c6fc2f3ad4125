//! Results of `specconv hash`, and what `--manifest` writes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SourceReport, Verdict};

/// Files were hashed, or checked against a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "hash")]
pub struct HashReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The hash function of `data` and `tensors`: `sha256` or `xxh64`.
    pub algorithm: String,
    /// The files, parts of split models each by itself.
    pub files: Vec<HashedFile>,
    /// What does not agree with the manifest; empty without one.
    pub differences: Vec<String>,
    /// `fail` if something does not agree.
    pub verdict: Verdict,
}

/// Where files come from, and what they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "manifest")]
pub struct ManifestReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program and version.
    pub made_by: String,
    /// What was asked for, as far as it decides about bytes.
    pub options: String,
    /// Repositories on the Hub that were read, with their commits.
    pub sources: Vec<SourceReport>,
    /// Files that were read; of repositories, those that are no weights.
    pub inputs: Vec<HashedInput>,
    /// The hash function of `data` and `tensors` in `files`.
    pub algorithm: String,
    /// Files that were written, parts of split models each by itself.
    pub files: Vec<HashedFile>,
}

/// The hash of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashedInput {
    /// Where.
    pub path: String,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of all of them.
    pub sha256: String,
}

/// The hashes of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashedFile {
    /// Where.
    pub path: String,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of all of them.
    pub sha256: String,
    /// Hash of the data of all tensors, without padding; keys do not count.
    pub data: String,
    /// Hash of each tensor's data, in file order.
    pub tensors: Vec<HashedTensor>,
    /// Keys that tell where the model comes from.
    pub provenance: BTreeMap<String, String>,
}

/// The hash of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashedTensor {
    /// Name.
    pub name: String,
    /// In hexadecimal.
    pub hash: String,
}
