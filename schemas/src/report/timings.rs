//! Times and counts of one request, under the names of llama.cpp's server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Times and counts of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timings {
    /// Prompt tokens taken from the caches: a prefix shared with a text that was there.
    pub cache_n: u64,
    /// Prompt tokens that were run.
    pub prompt_n: u64,
    /// Time to run them.
    pub prompt_ms: f64,
    /// Time for each of them; 0 without any.
    pub prompt_per_token_ms: f64,
    /// Prompt tokens run each second; 0 if no time was taken.
    pub prompt_per_second: f64,
    /// Tokens written.
    pub predicted_n: u64,
    /// Time to write them. The first one comes with the prompt.
    pub predicted_ms: f64,
    /// Time for each token after the first; 0 without any.
    pub predicted_per_token_ms: f64,
    /// Tokens after the first written each second; 0 if no time was taken.
    pub predicted_per_second: f64,
    /// Draft tokens that the target was asked about.
    pub draft_n: u64,
    /// Draft tokens that the target agreed with.
    pub draft_n_accepted: u64,
}
