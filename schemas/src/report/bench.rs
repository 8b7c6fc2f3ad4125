//! Result of `specrun bench`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CpuModel;

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
    /// The CPU; null in reports of older versions.
    #[serde(default)]
    pub cpu: Option<CpuModel>,
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
    /// Bytes that the same threads read from memory in a second, measured in this run, in 10^9; null
    /// for a device other than the CPU.
    #[serde(default)]
    pub read_gigabytes_per_s: Option<f64>,
    /// `decode_gigabytes_per_s` over `read_gigabytes_per_s`; more than 1 if weights stay in the CPU's
    /// caches.
    #[serde(default)]
    pub read_bandwidth_share: Option<f64>,
    /// Rounds that the times are medians of.
    pub n_rounds: usize,
    /// Passes over 1, 2, ... tokens of one sequence, behind the prompt.
    pub widths: Vec<WidthCost>,
    /// What each speculator adds to the reading of a prompt.
    #[serde(default)]
    pub prefill: Vec<PrefillCost>,
}

/// What a speculator adds to the reading of a prompt, up to its first draft.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefillCost {
    /// The speculator.
    pub speculator: String,
    /// Tokens of the prompt read in a second with it, the median of all rounds.
    pub tokens_per_s: f64,
    /// The same without it, in turns with the former.
    pub plain_tokens_per_s: f64,
    /// Its own time over that of the target.
    pub added: f64,
    /// Its multiply-adds over those of the target, for the prompt; the projection to the vocabulary, which
    /// a prompt does not need, is left out.
    pub work: f64,
    /// The work and five percent more.
    pub limit: f64,
    /// Whether it adds no more than that.
    pub holds: bool,
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
