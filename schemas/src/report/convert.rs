//! Result of `specconv convert`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// Result of converting a Hugging Face checkpoint to a GGUF file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "convert")]
pub struct ConvertReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Folder of the checkpoint, or its reference on the Hub.
    pub input: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Requested element type: `f32`, `f16`, `bf16`, `q8_0` or `auto`.
    pub outtype: String,
    /// Handling of the MTP head: `inline`, `only`, `without`, or `dspark` for a DSpark draft in its place.
    pub mtp: String,
    /// Output file.
    pub output: FileReport,
    /// Hub repository of the checkpoint; null for a local folder.
    pub source: Option<SourceReport>,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Notes on the result for the user, one sentence each.
    pub notes: Vec<String>,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// A Hub repository that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceReport {
    /// `org/name`.
    pub repository: String,
    /// Requested revision.
    pub revision: String,
    /// Commit hash of the revision.
    pub commit: String,
    /// Bytes downloaded; the rest was in the cache or not needed.
    pub fetched_bytes: u64,
    /// Bytes of the repository's weights and model description files.
    pub total_bytes: u64,
}
