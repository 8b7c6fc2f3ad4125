//! Results of `specconv split-mtp`, `graft-mtp` and `replace-mtp`, `requantize-mtp` and
//! `repair-mtp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CopyReport, FileReport, Verdict};

/// Result of splitting a model into its body and its MTP head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "split-mtp")]
pub struct SplitReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the model with the inline head.
    pub input: String,
    /// The model without the head; null if it was not requested.
    pub body: Option<FileReport>,
    /// The head as a sidecar file; null if it was not requested.
    pub mtp: Option<FileReport>,
    /// True if the files were written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished files, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of grafting an MTP head onto a model, or of refusing it because the two do not belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "graft-mtp")]
pub struct GraftReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the model that receives the head.
    pub target: String,
    /// Path of the file or checkpoint that provides the head.
    pub donor: String,
    /// Check that the head belongs to the model.
    pub pairing: PairingReport,
    /// True if the pair was refused and the file written anyway.
    pub forced: bool,
    /// Number of tensors of the head.
    pub n_grafted_tensors: u64,
    /// Bytes of their data, without padding.
    pub grafted_bytes: u64,
    /// Tensor data of the file copied without reading it into memory.
    pub copied: CopyReport,
    /// Output file; null if the pair was refused.
    pub output: Option<FileReport>,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Fail if the pair was refused.
    pub verdict: Verdict,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// Check that a head and a body belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PairingReport {
    /// Conclusion from all checks.
    pub outcome: PairingOutcome,
    /// Block index of the (first) head in the donor.
    pub donor_block: u32,
    /// Block index of the head in the target.
    pub target_block: u32,
    /// Comparisons of the head with the body.
    pub checks: Vec<PairingCheck>,
    /// Value statistics of the head's tensors.
    pub tensors: Vec<HeadTensorReport>,
}

/// Conclusion from comparing a head with a body.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum PairingOutcome {
    /// No difference between the head's model and the body's was found.
    Compatible,
    /// The head fits, but was or may have been trained for another fine-tune of the same base model. Measure
    /// its acceptance rate.
    Plausible,
    /// The head was trained for another model, or it does not work.
    Refused,
}

/// One comparison of the head with the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PairingCheck {
    /// Key, tensor or other property that was compared.
    pub subject: String,
    /// Result of the comparison.
    pub finding: Finding,
    /// Value of the body.
    pub target: String,
    /// Value of the head.
    pub donor: String,
}

/// Result of comparing one property of a head and a body.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    /// Both values are equal.
    Same,
    /// One side does not have the value.
    Unknown,
    /// The values differ as they do between fine-tunes of one base model.
    Differs,
    /// The values differ so that the head cannot work, or not well.
    Refuses,
}

/// Value statistics of one tensor of a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadTensorReport {
    /// Name of the tensor in the donor.
    pub tensor: String,
    /// Element type of the tensor.
    #[serde(rename = "type")]
    pub dtype: String,
    /// Number of elements.
    pub n_elements: u64,
    /// Bytes of the tensor's data.
    pub size_bytes: u64,
    /// Value statistics; null for a type that cannot be dequantized.
    pub values: Option<ValuesReport>,
    /// Value statistics of the corresponding tensor in a trunk layer of the body; null if there is none.
    pub trunk: Option<ValuesReport>,
}

/// Statistics of a tensor's values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValuesReport {
    /// Mean of the values.
    pub mean: f64,
    /// Root mean square.
    pub rms: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Number of zeros.
    pub n_zero: u64,
    /// Number of NaNs and infinities, which are excluded from the other statistics.
    pub n_not_finite: u64,
    /// Number of values with a magnitude that no weight has (below 2^-40 or above 2^10), without zeros.
    pub n_implausible: u64,
}

/// Result of repairing the layout of a file's MTP head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "repair-mtp")]
pub struct RepairReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the input file.
    pub input: String,
    /// Faults found in the layout; if empty, no file is written.
    pub faults: Vec<String>,
    /// The repaired file; null if no repair was needed.
    pub output: Option<FileReport>,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of requantizing the MTP head of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "requantize-mtp")]
pub struct RequantizeMtpReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the input file.
    pub input: String,
    /// Bytes of the head in the input.
    pub head_bytes_before: u64,
    /// Bytes of the head in the output.
    pub head_bytes_after: u64,
    /// Output file.
    pub output: FileReport,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}
