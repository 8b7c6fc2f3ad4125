//! Result of `specconv demo`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Verdict, VerifyReport};

/// Result of the whole pipeline on the bundled models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "demo")]
pub struct DemoReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Folder of the files; null if they were removed.
    pub folder: Option<String>,
    /// Stages in the order they ran.
    pub stages: Vec<Stage>,
    /// Full result of the last stage; null if an earlier stage failed.
    pub verify: Option<VerifyReport>,
    /// Pass if every stage passed.
    pub verdict: Verdict,
}

/// One stage of the pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Name of the stage: its action and the file.
    pub name: String,
    /// Time of the stage in milliseconds.
    pub elapsed_ms: f64,
    /// Bytes of the file written; null for a stage that writes none.
    pub size_bytes: Option<u64>,
    /// Accepted draft tokens divided by drafted ones; null for a stage that drafts none.
    pub acceptance: Option<f64>,
    /// Pass if the stage's check of its result holds.
    pub verdict: Verdict,
    /// Short description of that check.
    pub checked: String,
}
