//! Result of `specconv demo`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Verdict, VerifyReport};

/// The whole pipeline on the bundled models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "demo")]
pub struct DemoReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Folder of the files; null where they were removed.
    pub folder: Option<String>,
    /// Stages in the order they ran.
    pub stages: Vec<Stage>,
    /// The last stage's full result; null if a stage before it failed.
    pub verify: Option<VerifyReport>,
    /// Pass if every stage's verdict is.
    pub verdict: Verdict,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// What was done, and to what.
    pub name: String,
    /// Time it took.
    pub elapsed_ms: f64,
    /// Bytes of the file it wrote; null for a stage that writes none.
    pub size_bytes: Option<u64>,
    /// Draft tokens accepted over drafted; null for a stage that drafts none.
    pub acceptance: Option<f64>,
    /// Whether what the stage checks about its result holds.
    pub verdict: Verdict,
    /// What that is, in a few words.
    pub checked: String,
}
