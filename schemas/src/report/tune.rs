//! Result of `specrun tune`, and the file with its measurements.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Estimate, InputFile, Provenance};

/// A recipe that was chosen by measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "tune")]
pub struct TuneReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, machine and inputs.
    pub provenance: Option<Provenance>,
    /// Path of the base model's file.
    pub model: String,
    /// Path of the recipe.
    pub recipe: String,
    /// Number of tokens on which the divergence was measured.
    pub n_scored: usize,
    /// Acceptance of the base model's MTP head; null without a head.
    pub base_acceptance: Option<f64>,
    /// Groups of tensors with the chosen types, in the order of the file.
    pub groups: Vec<TuneChoice>,
    /// Bytes of tensor data.
    pub data_bytes: u64,
    /// Bits of tensor data per weight.
    pub bits_per_weight: f64,
    /// Sum of the divergences that each group caused alone.
    pub predicted_kld: f64,
    /// Divergence of the whole mix, and of the standard mixes of about its size.
    pub mixes: Vec<TuneMix>,
}

/// The type that was chosen for a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TuneChoice {
    /// Name of the group.
    pub name: String,
    /// Names of its tensors.
    pub tensors: Vec<String>,
    /// The chosen element type.
    pub dtype: String,
    /// Bytes of the tensors in this type.
    pub size_bytes: u64,
    /// Divergence that this type caused alone.
    pub kld: f64,
}

/// A measured mix of types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TuneMix {
    /// `tuned`, or the file type of a standard mix.
    pub name: String,
    /// Bytes of tensor data.
    pub data_bytes: u64,
    /// Bits of tensor data per weight.
    pub bits_per_weight: f64,
    /// Mean divergence from the base.
    pub kld: Estimate,
    /// Acceptance of the MTP head; null without a head.
    pub acceptance: Option<f64>,
}

/// Measurements of `specrun tune`, kept in a file so that an interrupted run can continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "tune-measurements")]
pub struct TuneMeasurements {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Everything that the measurements depend on.
    pub settings: TuneSettings,
    /// Measured mixes, in the order of measurement.
    pub measured: Vec<TuneMeasurement>,
}

/// Inputs and sizes of measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TuneSettings {
    /// Files of the base model, and the importance matrix.
    pub files: Vec<InputFile>,
    /// SHA-256 of the token ids of all chunks, each as little-endian u32.
    pub tokens_sha256: String,
    /// Chunk length in tokens.
    pub n_ctx: usize,
    /// Number of chunks.
    pub n_chunks: usize,
}

/// Effect of one mix of types on the base model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TuneMeasurement {
    /// Group of tensors in another type, or `all`.
    pub group: String,
    /// Element type of the group, or the name of the whole mix.
    pub dtype: String,
    /// SHA-256 of the names and types of all tensors that differ from the base.
    pub types_sha256: String,
    /// Bytes of all tensor data.
    pub data_bytes: u64,
    /// Mean divergence of the target from the base.
    pub kld: Estimate,
    /// Acceptance of the MTP head; null without a head.
    pub acceptance: Option<f64>,
}
