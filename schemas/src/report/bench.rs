//! Result of `specrun bench`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What passes of a model cost on this machine, and when drafting pays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "bench")]
pub struct BenchReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model's file.
    pub model: String,
    /// Where it ran, with the instruction set or device.
    pub backend: String,
    /// Threads.
    pub n_threads: usize,
    /// Bytes of weights that a pass over one token reads.
    pub weight_bytes: u64,
    /// Tokens of the prompt, in passes as long as reading a prompt takes them.
    pub n_prompt: usize,
    /// Tokens of the prompt read in a second.
    pub prefill_tokens_per_s: f64,
    /// Tokens of one sequence decoded in a second, without drafts.
    pub decode_tokens_per_s: f64,
    /// Bytes of weights that decoding reads in a second, in 10^9.
    pub decode_gigabytes_per_s: f64,
    /// Rounds that the times are medians of.
    pub n_rounds: usize,
    /// Passes over 1, 2, ... tokens of one sequence, behind the prompt.
    pub widths: Vec<WidthCost>,
}

/// The cost of a pass over some tokens: the check of a draft that is one token shorter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WidthCost {
    /// Tokens of the pass.
    pub n_tokens: usize,
    /// Time of a pass, the median of all rounds.
    pub pass_ms: f64,
    /// The same over the time of a pass over one token.
    pub ratio: f64,
    /// Draft tokens that must be accepted a pass, on average, for the check alone to cost nothing:
    /// what the drafter takes comes on top.
    pub break_even_accepted: f64,
}
