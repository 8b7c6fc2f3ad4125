//! Result of `specrun tokenize`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tokens of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "tokenize")]
pub struct TokenizeReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the model's file.
    pub model: String,
    /// Token ids.
    pub tokens: Vec<u32>,
}
