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
    /// What became of each type's tensors, the largest share of the output first.
    pub types: Vec<TypeChange>,
    /// What became of each tensor, in the order of the output.
    pub tensors: Vec<TensorChange>,
    /// Most bytes that the writer's buffers held at one time; 0 under `--dry-run`.
    pub peak_buffer_bytes: u64,
    /// What a user should know about the result, one sentence each.
    pub notes: Vec<String>,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// The tensors that got one element type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeChange {
    /// The type's ggml name.
    pub dtype: String,
    /// Tensors of it in the output.
    pub n_tensors: u64,
    /// Bytes of their data in the input, whatever their types were there.
    pub size_before_bytes: u64,
    /// Bytes of their data in the output.
    pub size_after_bytes: u64,
    /// Megabytes of the input that a worker recodes in a second; null where nothing was recoded.
    pub mb_per_worker_s: Option<f64>,
    /// Root of the mean squared difference between the input's values and the output's, over the
    /// tensors that were recoded. Null where there are none, under `--dry-run`, and where a part
    /// of them was written by an earlier run.
    pub rmse: Option<f64>,
}

/// What became of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorChange {
    /// The name in the output.
    pub name: String,
    /// Elements along each axis, the contiguous one first.
    pub shape: Vec<u64>,
    /// Element type in the input.
    pub from: String,
    /// Element type in the output.
    pub to: String,
    /// Bytes of data in the input.
    pub size_before_bytes: u64,
    /// Bytes of data in the output.
    pub size_after_bytes: u64,
    /// What decided on the type.
    pub decided_by: DecidedBy,
    /// The pattern of the rule, where one decided.
    pub pattern: Option<String>,
    /// The type that was meant for it, where its rows are no whole blocks of that.
    pub fallback_from: Option<String>,
    /// Whether it could use an importance matrix, there is one, and that does not know it.
    pub lacks_importance: bool,
}

/// What decided on the type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecidedBy {
    /// Such tensors keep their type, as do all when a file is copied.
    Kept,
    /// `--output-tensor-type` or `--token-embedding-type`.
    Role,
    /// A rule of `--tensor-type`.
    Rule,
    /// `--mtp-type`.
    MtpType,
    /// The one type of all weights: `--pure`, or a file of F32, F16 or BF16.
    Pure,
    /// The mix of the file type.
    Mix,
}
