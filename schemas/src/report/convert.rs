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
    /// The checkpoint's folder.
    pub input: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Type that was asked for: `f32`, `f16`, `bf16`, `q8_0` or `auto`.
    pub outtype: String,
    /// What became of the MTP head: `inline`, `only` or `without`.
    pub mtp: String,
    /// The file.
    pub output: FileReport,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// What a user should know about the result, one sentence each.
    pub notes: Vec<String>,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}
