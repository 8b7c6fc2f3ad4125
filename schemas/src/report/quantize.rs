//! Result of `specconv quantize`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// Result of quantizing a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "quantize")]
pub struct QuantizeReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the GGUF file or of the checkpoint's folder.
    pub input: String,
    /// Bytes of tensor data in the input.
    pub input_data_bytes: u64,
    /// Quantization mix, such as `Q4_K_M`.
    pub ftype: String,
    /// Output file.
    pub output: FileReport,
    /// Bits per weight over all tensors of the output.
    pub bits_per_weight: f64,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Changes by output type, the largest share of the output first.
    pub types: Vec<TypeChange>,
    /// Change of each tensor, in the order of the output.
    pub tensors: Vec<TensorChange>,
    /// Peak size of the writer's buffers in bytes; 0 under `--dry-run`.
    pub peak_buffer_bytes: u64,
    /// Notes on the result for the user, one sentence each.
    pub notes: Vec<String>,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// Tensors with one output type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeChange {
    /// Name of the output type in ggml.
    pub dtype: String,
    /// Number of tensors of this type in the output.
    pub n_tensors: u64,
    /// Bytes of their data in the input, in any type.
    pub size_before_bytes: u64,
    /// Bytes of their data in the output.
    pub size_after_bytes: u64,
    /// Megabytes of input that one worker thread requantizes per second; null if no tensor was requantized.
    pub mb_per_worker_s: Option<f64>,
    /// Root mean square error of the output's values against the input's, over the requantized
    /// tensors. Null if there are none, under `--dry-run`, and if an earlier, resumed run wrote some
    /// of them.
    pub rmse: Option<f64>,
}

/// Change of one tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorChange {
    /// Name of the tensor in the output.
    pub name: String,
    /// Shape, the contiguous axis first.
    pub shape: Vec<u64>,
    /// Element type in the input.
    pub from: String,
    /// Element type in the output.
    pub to: String,
    /// Bytes of data in the input.
    pub size_before_bytes: u64,
    /// Bytes of data in the output.
    pub size_after_bytes: u64,
    /// Source of the output type.
    pub decided_by: DecidedBy,
    /// Pattern of the rule that selected the type; null if no rule did.
    pub pattern: Option<String>,
    /// Type that was selected first, if the row length is not a multiple of its block size; otherwise null.
    pub fallback_from: Option<String>,
    /// True if the type can use an importance matrix and one was given, but it has no entry for this tensor.
    pub lacks_importance: bool,
}

/// Source of a tensor's output type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecidedBy {
    /// The tensor keeps its type: it is never quantized, or the file is only copied.
    Kept,
    /// `--output-tensor-type` or `--token-embedding-type`.
    Role,
    /// A rule of `--tensor-type`.
    Rule,
    /// `--mtp-type`.
    MtpType,
    /// The same type for all weights: `--pure`, or a file of F32, F16 or BF16.
    Pure,
    /// The quantization mix of the file type.
    Mix,
}
