//! Result of `specconv convert`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// An HF checkpoint became a GGUF file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "convert")]
pub struct ConvertReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The checkpoint's folder, or its reference on the Hub.
    pub input: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Type that was asked for: `f32`, `f16`, `bf16`, `q8_0` or `auto`.
    pub outtype: String,
    /// What became of the MTP head: `inline`, `only` or `without`.
    pub mtp: String,
    /// The file.
    pub output: FileReport,
    /// Where the checkpoint was, if not in a folder.
    pub source: Option<SourceReport>,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// What a user should know about the result, one sentence each.
    pub notes: Vec<String>,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// A repository on the Hub, as it was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceReport {
    /// `org/name`.
    pub repository: String,
    /// The revision that was asked for.
    pub revision: String,
    /// The commit that it was.
    pub commit: String,
    /// Bytes of its files that came over the network; the rest was in the cache, or not needed.
    pub fetched_bytes: u64,
    /// Bytes of its weights and of the files that describe the model.
    pub total_bytes: u64,
}
