//! Result of `specrun perplexity`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Perplexity of a model on a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "perplexity")]
pub struct PerplexityReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the model's file.
    pub model: String,
    /// Path of the text file.
    pub text: String,
    /// Chunk length in tokens; each chunk starts with an empty KV cache.
    pub n_ctx: usize,
    /// Number of complete chunks.
    pub n_chunks: usize,
    /// Number of scored tokens: the second half of each chunk.
    pub n_scored: usize,
    /// `exp` of the mean negative log-likelihood of the scored tokens.
    pub perplexity: f64,
    /// Standard error of the perplexity, as if tokens were independent.
    pub standard_error: f64,
}
