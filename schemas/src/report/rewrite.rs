//! Results of commands that write a model in another form and leave its tensors as they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// A model was split in parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "split")]
pub struct PartsReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model.
    pub input: String,
    /// The parts.
    pub output: FileReport,
    /// Whether they were written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished files.
    pub elapsed_ms: u64,
}

/// The parts of a model were merged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "merge")]
pub struct MergeReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The parts, in order.
    pub inputs: Vec<String>,
    /// The model in one piece.
    pub output: FileReport,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Whether the parts were deleted afterwards.
    pub deleted: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// A file got other keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "set-metadata")]
pub struct MetadataReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The file that was changed.
    pub input: String,
    /// The file that was written, the same one unless another was asked for.
    pub output: FileReport,
    /// Keys with another value than before, in file order.
    pub set: Vec<String>,
    /// Keys that are gone.
    pub removed: Vec<String>,
    /// Whether the file was edited where it lies; false where a new one took its place.
    pub in_place: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}
