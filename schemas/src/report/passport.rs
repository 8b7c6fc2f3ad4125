//! Results of verification that model files carry in their keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Proved properties of a model, and the hash of the tensors that they were proved of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Passport {
    /// Version and commit of the program.
    pub tool_version: String,
    /// Date and time in UTC, as in RFC 3339.
    pub date: String,
    /// SHA-256 over the names, types, shapes and data of all tensors.
    pub tensors_sha256: String,
    /// SHA-256 over the keys of the architecture and of the tokenizer, without chat templates.
    pub settings_sha256: String,
    /// Fastest speculator that passed, or names of a chain, separated by commas; `none` if the target was
    /// verified alone.
    pub speculator: String,
    /// Names of the draft files.
    pub drafts: Vec<String>,
    /// Hash of the tensors of each draft file.
    pub drafts_sha256: Vec<String>,
    /// Draft length with the most tokens per second, by acceptance and the cost of passes; 0 without a
    /// speculator.
    pub n_draft: u32,
    /// True if tokens and logits were equal to those of plain decoding, bit for bit.
    pub exact: bool,
    /// Number of prompts decoded.
    pub n_prompts: u32,
    /// SHA-256 of the prompts, as in the report.
    pub prompts_sha256: String,
    /// Acceptance by draft position, the first token first.
    pub acceptance: Vec<f32>,
    /// Time of a pass over 1, 2, .. tokens, divided by that over one token.
    pub pass_cost: Vec<f32>,
    /// Tokens per second with drafts divided by those without; null if no speed was measured.
    pub speedup: Option<f32>,
    /// Backend, with its instruction set or device.
    pub backend: String,
    /// Name of the CPU.
    pub cpu: String,
}

/// A passport that a file carries, and the comparison with its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PassportReport {
    /// Comparison with the file.
    pub status: PassportStatus,
    /// Contents; null if a key is missing or of another type.
    pub passport: Option<Passport>,
}

/// Comparison of a passport with the file that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PassportStatus {
    /// The passport is as written, and tensors and settings are those that were verified.
    Valid,
    /// The tensors, the keys of the architecture or the tokenizer differ from those that were verified.
    Stale,
    /// Keys of the passport were changed after it was written.
    Edited,
    /// The tensors were not read.
    Unchecked,
}

/// Result of `specconv draft-flags`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "draft-flags")]
pub struct DraftFlagsReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the file.
    pub path: String,
    /// The passport of the file.
    pub passport: PassportReport,
    /// Flags and their values; empty if the target was verified alone, or the passport does not hold.
    pub flags: Vec<String>,
}
