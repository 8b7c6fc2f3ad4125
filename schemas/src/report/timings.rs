//! Times and counts of one request, under the names of llama.cpp's server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Times and counts of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timings {
    /// Number of prompt tokens reused from the KV cache, a prefix shared with earlier text.
    pub cache_n: u64,
    /// Number of prompt tokens processed.
    pub prompt_n: u64,
    /// Prefill time in milliseconds.
    pub prompt_ms: f64,
    /// Prefill time per processed token in milliseconds; 0 if none was processed.
    pub prompt_per_token_ms: f64,
    /// Prompt tokens processed per second; 0 if no time was measured.
    pub prompt_per_second: f64,
    /// Number of generated tokens.
    pub predicted_n: u64,
    /// Decoding time in milliseconds. The first token comes from the prefill and is not included.
    pub predicted_ms: f64,
    /// Decoding time per token after the first, in milliseconds; 0 if there are none.
    pub predicted_per_token_ms: f64,
    /// Tokens after the first generated per second; 0 if no time was measured.
    pub predicted_per_second: f64,
    /// Number of draft tokens that the target verified.
    pub draft_n: u64,
    /// Number of draft tokens that the target accepted.
    pub draft_n_accepted: u64,
}

impl Timings {
    /// Returns these counts and times with the rates that follow from them. Decoding rates exclude the
    /// first token, which comes with the prompt.
    pub fn with_rates(self) -> Timings {
        let per_second = |n: u64, ms: f64| if ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
        let per_token = |n: u64, ms: f64| if n > 0 { ms / n as f64 } else { 0.0 };
        let n_steps = self.predicted_n.saturating_sub(1);
        Timings {
            prompt_per_token_ms: per_token(self.prompt_n, self.prompt_ms),
            prompt_per_second: per_second(self.prompt_n, self.prompt_ms),
            predicted_per_token_ms: per_token(n_steps, self.predicted_ms),
            predicted_per_second: per_second(n_steps, self.predicted_ms),
            ..self
        }
    }
}
