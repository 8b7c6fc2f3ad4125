//! Results of `specconv split-mtp`, `graft-mtp` and `replace-mtp`, `requantize-mtp` and
//! `repair-mtp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CopyReport, FileReport, Verdict};

/// A model was cut into its body and its MTP head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "split-mtp")]
pub struct SplitReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model with the head inline.
    pub input: String,
    /// The model without the head; null where it was not asked for.
    pub body: Option<FileReport>,
    /// The head, a sidecar file; null where it was not asked for.
    pub mtp: Option<FileReport>,
    /// Whether the files were written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished files.
    pub elapsed_ms: u64,
}

/// An MTP head was grafted onto a model, or was not, because the two do not belong together.
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
    /// Whether the head belongs to the model.
    pub pairing: PairingReport,
    /// Whether a refused pair was joined all the same.
    pub forced: bool,
    /// Tensors of the head.
    pub n_grafted_tensors: u64,
    /// Bytes of their data.
    pub grafted_bytes: u64,
    /// What of the file was copied without looking at it.
    pub copied: CopyReport,
    /// The file; null where the pair was refused.
    pub output: Option<FileReport>,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Fail if the pair was refused.
    pub verdict: Verdict,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// Whether a head and a body belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PairingReport {
    /// What follows from all findings.
    pub outcome: PairingOutcome,
    /// The block of the donor that holds its (first) head.
    pub donor_block: u32,
    /// The block that it becomes.
    pub target_block: u32,
    /// What was compared.
    pub checks: Vec<PairingCheck>,
    /// The values of the head's tensors.
    pub tensors: Vec<HeadTensorReport>,
}

/// What follows from comparing a head with a body.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum PairingOutcome {
    /// Nothing tells the head's model from the body's.
    Compatible,
    /// The head fits, but was made for another fine-tune of the same base, or nothing shows that
    /// it was not: measure what it gets accepted.
    Plausible,
    /// The head was made for another model, or is no working head.
    Refused,
}

/// One thing that was compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PairingCheck {
    /// A key, a tensor, or what else was looked at.
    pub subject: String,
    /// What was found.
    pub finding: Finding,
    /// The body's value.
    pub target: String,
    /// The head's.
    pub donor: String,
}

/// What a comparison says about a pair.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    /// The same on both sides.
    Same,
    /// One side does not say.
    Unknown,
    /// Different, as between fine-tunes of one base.
    Differs,
    /// Different, so that the head cannot work, or not well.
    Refuses,
}

/// The values of one tensor of a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadTensorReport {
    /// Its name in the donor.
    pub tensor: String,
    /// Its element type.
    #[serde(rename = "type")]
    pub dtype: String,
    /// Elements.
    pub n_elements: u64,
    /// Bytes of its data.
    pub size_bytes: u64,
    /// The values; null for a type that cannot be decoded.
    pub values: Option<ValuesReport>,
    /// The same row of a trunk layer of the body; null where there is none.
    pub trunk: Option<ValuesReport>,
}

/// How values are spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValuesReport {
    /// Mean.
    pub mean: f64,
    /// Root of the mean square.
    pub rms: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Zeros among them.
    pub n_zero: u64,
    /// NaNs and infinities, which count in nothing else.
    pub n_not_finite: u64,
    /// Values of a size that no weight has (below 2^-40 or above 2^10), zeros left out.
    pub n_wild: u64,
}

/// The layout of a file's MTP head was mended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "repair-mtp")]
pub struct RepairReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The file.
    pub input: String,
    /// What was wrong with it; nothing is written where this is empty.
    pub faults: Vec<String>,
    /// The mended file; null where there was nothing to mend.
    pub output: Option<FileReport>,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// The MTP head of a model was written in another type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "requantize-mtp")]
pub struct RequantizeMtpReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The file.
    pub input: String,
    /// Bytes of the head in it.
    pub head_bytes_before: u64,
    /// Bytes of the head in the result.
    pub head_bytes_after: u64,
    /// The result.
    pub output: FileReport,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}
