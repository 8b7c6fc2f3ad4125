//! Result of `specrun perplexity`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How well a model expects a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "perplexity")]
pub struct PerplexityReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model's file.
    pub model: String,
    /// The text's file.
    pub text: String,
    /// Tokens of a chunk; each chunk is read by itself.
    pub n_ctx: usize,
    /// Whole chunks of the text.
    pub n_chunks: usize,
    /// Tokens whose probability counts: those of the second half of each chunk.
    pub n_scored: usize,
    /// `exp` of the mean negative log-likelihood of the scored tokens.
    pub perplexity: f64,
    /// Its standard error, as if tokens were independent.
    pub standard_error: f64,
}
