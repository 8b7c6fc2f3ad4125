//! Results of `specconv graft-vocab`, `split-vocab`, `trim-vocab` and `map-vocab`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// Result of adding a draft-to-target map to a draft model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "graft-vocab")]
pub struct GraftVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the draft model.
    pub draft: String,
    /// Path of the file with the map.
    pub map: String,
    /// Number of tokens in the draft's vocabulary.
    pub n_draft: u64,
    /// Number of tokens in the target's vocabulary.
    pub n_target: u64,
    /// Special tokens of the target that the draft cannot propose.
    pub missing_special: Vec<u32>,
    /// Output file.
    pub output: FileReport,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of removing the draft-to-target map from a draft model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "split-vocab")]
pub struct SplitVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the draft model.
    pub draft: String,
    /// Number of tokens in the map.
    pub n_draft: u64,
    /// The file with the map.
    pub map: FileReport,
    /// The draft model without the map; null if it was not requested.
    pub output: Option<FileReport>,
    /// True if the files were written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished files, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of reducing the output head of a draft to a subset of the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "trim-vocab")]
pub struct TrimVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the draft model, or of the file with the MTP head.
    pub input: String,
    /// Number of tokens in the target's vocabulary.
    pub n_target: u64,
    /// Number of tokens in the reduced output head.
    pub n_draft: u64,
    /// Number of tokens kept regardless of their frequency.
    pub n_special: u64,
    /// Number of tokens in the counted texts; null if a token list was given.
    pub n_counted: Option<u64>,
    /// Number of tokens in the held-out texts; null if there were none.
    pub n_held_out: Option<u64>,
    /// Share of the held-out tokens that the reduced output head covers.
    pub coverage: Option<f64>,
    /// Bytes of weights saved per drafted token.
    pub saved_bytes_per_token: u64,
    /// Output file.
    pub output: FileReport,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of mapping the vocabularies of a target and of a draft model with another tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "map-vocab")]
pub struct MapVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the target.
    pub target: String,
    /// Path of the draft model.
    pub draft: String,
    /// Coverage of the target's tokens by the draft model's.
    pub target_to_draft: CoverageReport,
    /// Coverage of the draft model's tokens by the target's.
    pub draft_to_target: CoverageReport,
    /// The file with the map.
    pub output: FileReport,
    /// True if the file was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file, in milliseconds.
    pub elapsed_ms: u64,
}

/// Number of tokens of one vocabulary by their translation to the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoverageReport {
    /// Tokens translated to one token.
    pub n_exact: u64,
    /// Tokens translated to several tokens.
    pub n_sequence: u64,
    /// Tokens without a translation.
    pub n_none: u64,
}
