//! Results of commands that rewrite a model with unmodified tensors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// Result of splitting a model into shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "split")]
pub struct PartsReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the model.
    pub input: String,
    /// The shards.
    pub output: FileReport,
    /// True if the files were written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished files, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of merging the shards of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "merge")]
pub struct MergeReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Paths of the shards, in order.
    pub inputs: Vec<String>,
    /// The merged model.
    pub output: FileReport,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// True if the shards were deleted after merging.
    pub deleted: bool,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of changing the keys of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "set-metadata")]
pub struct MetadataReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the input file.
    pub input: String,
    /// Output file; the input itself unless another path was given.
    pub output: FileReport,
    /// Keys with a new value, in file order.
    pub set: Vec<String>,
    /// Removed keys.
    pub removed: Vec<String>,
    /// True if the header was edited in place; false if the file was replaced by a new one.
    pub in_place: bool,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}
