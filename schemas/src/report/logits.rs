//! Result of `specrun logits`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Logits after each token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "logits")]
pub struct LogitsReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the model's file.
    pub model: String,
    /// Input token ids.
    pub tokens: Vec<u32>,
    /// Logits after each token, in order.
    pub positions: Vec<PositionLogits>,
}

/// Logits after one token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PositionLogits {
    /// Hash of the full row, in hexadecimal: equal if and only if (but for collisions) the rows
    /// are bit-identical.
    pub logits_hash: String,
    /// Largest logits, in descending order; ties are ordered by token id.
    pub top: Vec<TokenLogit>,
}

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenLogit {
    /// Token id.
    pub id: u32,
    /// Logit.
    pub logit: f32,
}
