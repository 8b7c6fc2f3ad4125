//! Result of `specrun logits`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The logits behind each of the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "logits")]
pub struct LogitsReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model's file.
    pub model: String,
    /// The token ids.
    pub tokens: Vec<u32>,
    /// One entry a token.
    pub positions: Vec<PositionLogits>,
}

/// The logits behind one token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PositionLogits {
    /// Hash of the full row, in hexadecimal: equal if and only if (but for collisions) the rows
    /// are bit-identical.
    pub logits_hash: String,
    /// The largest logits, the largest first; the smaller id first among equals.
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
