//! Result of `specconv quantize`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// A model was written in another mix of types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "quantize")]
pub struct QuantizeReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The GGUF file or the checkpoint's folder.
    pub input: String,
    /// Bytes of tensor data in the input.
    pub input_data_bytes: u64,
    /// The mix, such as `Q4_K_M`.
    pub ftype: String,
    /// The file.
    pub output: FileReport,
    /// Bits per weight over all tensors of the output.
    pub bits_per_weight: f64,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// What a user should know about the result, one sentence each.
    pub notes: Vec<String>,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}
