//! Result of `specrun generate`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Counters, Timings};

/// A continuation of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "generate")]
pub struct GenerateReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the target's file.
    pub model: String,
    /// Backend that ran the models, with its instruction set or device.
    pub backend: String,
    /// The prompt's `id` in the prompt file; null for a single prompt.
    pub prompt_id: Option<String>,
    /// The prompt's token ids; 4294967295 in the place of an embedding.
    pub prompt_tokens: Vec<u32>,
    /// Generated token ids, without the prompt.
    pub tokens: Vec<u32>,
    /// Text of the generated tokens.
    pub text: String,
    /// Reason why generation stopped.
    pub stop: StopReason,
    /// Counters of decoding.
    pub counters: Counters,
    /// Times and counts of this prompt, under the names of llama.cpp's server.
    #[serde(default)]
    pub timings: Timings,
}

/// Reason why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The model generated an end-of-sequence token.
    EndOfText,
    /// The requested number of tokens was generated.
    Length,
    /// The context is full.
    Context,
    /// A signal stopped the program.
    Interrupted,
}
