//! Results of `specconv split-mtp` and `specconv graft-mtp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// A model was cut into its body and its MTP head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "split-mtp")]
pub struct SplitReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model with the head inline.
    pub input: String,
    /// The model without the head.
    pub body: FileReport,
    /// The head, a sidecar file.
    pub mtp: FileReport,
    /// Whether the files were written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished files.
    pub elapsed_ms: u64,
}

/// An MTP head was grafted onto a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "graft-mtp")]
pub struct GraftReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model that received the head.
    pub target: String,
    /// The file or checkpoint that the head came from.
    pub donor: String,
    /// Tensors of the head.
    pub n_grafted_tensors: u64,
    /// Bytes of their data.
    pub grafted_bytes: u64,
    /// The file.
    pub output: FileReport,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}
