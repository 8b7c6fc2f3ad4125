//! Result of `specrun generate`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Counters, Timings};

/// A continuation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "generate")]
pub struct GenerateReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The target's file.
    pub model: String,
    /// Where it ran, with the instruction set or device.
    pub backend: String,
    /// The prompt's `id` in the prompt file; null for a single prompt.
    pub prompt_id: Option<String>,
    /// The prompt's token ids.
    pub prompt_tokens: Vec<u32>,
    /// Token ids written behind the prompt.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
    /// Why it ended.
    pub stop: StopReason,
    /// What decoding counted.
    pub counters: Counters,
    /// Times and counts of this prompt, under the names of llama.cpp's server.
    #[serde(default)]
    pub timings: Timings,
}

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The model ended its text.
    EndOfText,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// A signal stopped the program.
    Interrupted,
}
