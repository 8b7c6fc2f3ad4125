//! Result of `specrun bench`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CpuModel, Provenance};

/// Cost of a model's forward passes on this machine, and the accepted draft tokens needed to break even.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "bench")]
pub struct BenchReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, machine and inputs; null in reports of older versions.
    #[serde(default)]
    pub provenance: Option<Provenance>,
    /// Path of the model's file.
    pub model: String,
    /// Backend that ran the model, with its instruction set or device.
    pub backend: String,
    /// CPU threads.
    pub n_threads: usize,
    /// The CPU; null in reports of older versions.
    #[serde(default)]
    pub cpu: Option<CpuModel>,
    /// Bytes of weights that a forward pass over one token reads.
    pub weight_bytes: u64,
    /// Number of prompt tokens, processed in batches of the usual prefill size.
    pub n_prompt: usize,
    /// Prompt tokens processed per second.
    pub prefill_tokens_per_s: f64,
    /// Tokens of one sequence decoded per second, without drafts.
    pub decode_tokens_per_s: f64,
    /// Weights read per second while decoding, in units of 10^9 bytes.
    pub decode_gigabytes_per_s: f64,
    /// Memory read bandwidth of the same threads, measured in this run, in units of 10^9 bytes per second;
    /// null for a device other than the CPU.
    #[serde(default)]
    pub read_gigabytes_per_s: Option<f64>,
    /// The same of one thread alone; null in reports of older versions.
    #[serde(default)]
    pub read_gigabytes_per_s_of_one_thread: Option<f64>,
    /// Distance at which products prefetch weights, in cache lines of 64 bytes, measured in this run unless
    /// set; 0 for no prefetching, null if it was not measured or streams are prefetched.
    #[serde(default)]
    pub prefetch_distance: Option<usize>,
    /// True if products prefetch several streams (`--prefetch streams`).
    #[serde(default)]
    pub prefetches_streams: bool,
    /// `decode_gigabytes_per_s` divided by `read_gigabytes_per_s`; more than 1 if weights stay in the CPU's
    /// caches.
    #[serde(default)]
    pub read_bandwidth_share: Option<f64>,
    /// Number of rounds; each time is the median of all rounds.
    pub n_rounds: usize,
    /// Cost of forward passes over 1, 2, ... tokens of one sequence, after the prompt.
    pub widths: Vec<WidthCost>,
    /// Cost that each speculator adds to prefill.
    #[serde(default)]
    pub prefill: Vec<PrefillCost>,
}

/// Cost that a speculator adds to prefill, up to its first draft.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefillCost {
    /// Name of the speculator.
    pub speculator: String,
    /// Prompt tokens processed per second with the speculator, the median of all rounds.
    pub tokens_per_s: f64,
    /// Prompt tokens processed per second without it, measured alternately.
    pub plain_tokens_per_s: f64,
    /// Prefill time of the speculator divided by that of the target.
    pub added: f64,
    /// Multiply-adds of the speculator in prefill divided by those of the target. The output projection is
    /// left out, because prefill does not need it.
    pub work: f64,
    /// Largest `added` that passes: `work` plus 0.05.
    pub limit: f64,
    /// True if `added` is at most `limit`.
    pub holds: bool,
}

/// Cost of a forward pass over several tokens, as for verifying a draft that is one token shorter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WidthCost {
    /// Number of tokens in the pass.
    pub n_tokens: usize,
    /// Time of a pass in milliseconds, the median of all rounds.
    pub pass_ms: f64,
    /// `pass_ms` divided by the time of a pass over one token.
    pub ratio: f64,
    /// Mean number of draft tokens that must be accepted per pass to pay for verification. The cost of
    /// drafting comes on top.
    pub break_even_accepted: f64,
}
