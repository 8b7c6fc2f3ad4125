//! Results of `specconv graft-vocab`, `split-vocab`, `trim-vocab` and `map-vocab`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileReport;

/// A draft-to-target map was put into a draft.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "graft-vocab")]
pub struct GraftVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The draft.
    pub draft: String,
    /// The file that holds the map.
    pub map: String,
    /// Tokens of the draft.
    pub n_draft: u64,
    /// Tokens of the target.
    pub n_target: u64,
    /// Special tokens of the target that the draft cannot propose.
    pub missing_special: Vec<u32>,
    /// The result.
    pub output: FileReport,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// The map of a draft was taken out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "split-vocab")]
pub struct SplitVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The draft.
    pub draft: String,
    /// Tokens of the map.
    pub n_draft: u64,
    /// The file with the map.
    pub map: FileReport,
    /// The draft without it; null where it was not asked for.
    pub output: Option<FileReport>,
    /// Whether the files were written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished files.
    pub elapsed_ms: u64,
}

/// The output of a draft was reduced to some tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "trim-vocab")]
pub struct TrimVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The draft, or the file with the MTP head.
    pub input: String,
    /// Tokens of the target.
    pub n_target: u64,
    /// Tokens that the reduced output has.
    pub n_draft: u64,
    /// Tokens among them that are kept whatever their frequency.
    pub n_special: u64,
    /// Tokens of the texts that were counted; null where a list was given.
    pub n_counted: Option<u64>,
    /// Tokens of the texts that were held out; null where there were none.
    pub n_held_out: Option<u64>,
    /// Share of those that the reduced output has.
    pub coverage: Option<f64>,
    /// Bytes of weights that a drafted token reads no more.
    pub saved_bytes_per_token: u64,
    /// The result.
    pub output: FileReport,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// The vocabularies of a target and of a draft model with another tokenizer were mapped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "map-vocab")]
pub struct MapVocabReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The target.
    pub target: String,
    /// The draft model.
    pub draft: String,
    /// What the target's tokens are in the draft model's.
    pub target_to_draft: CoverageReport,
    /// What the draft model's tokens are in the target's.
    pub draft_to_target: CoverageReport,
    /// The file with the map.
    pub output: FileReport,
    /// Whether it was written; false under `--dry-run`.
    pub written: bool,
    /// Time from start to the finished file.
    pub elapsed_ms: u64,
}

/// Tokens of one side by their translation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoverageReport {
    /// Translated to one token.
    pub n_exact: u64,
    /// Translated to several.
    pub n_sequence: u64,
    /// Not translated.
    pub n_none: u64,
}
