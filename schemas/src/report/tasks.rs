//! Result of `specrun bench --tasks`. Fields have the names of the community's `mtp-bench` script where
//! it has them, so that results can be compared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DraftPosition, Provenance, SpeedComparison};

/// Speed and acceptance rate by task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "bench-tasks")]
pub struct TasksReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, machine and inputs; null in reports of older versions.
    #[serde(default)]
    pub provenance: Option<Provenance>,
    /// Path of the target's file.
    pub model: String,
    /// Speculators, in the order they are tried.
    pub speculators: Vec<String>,
    /// Policy that picks the draft of a chain to verify: `first` or `best`; null in reports of older versions.
    #[serde(default)]
    pub policy: Option<String>,
    /// Maximum draft length in tokens.
    pub n_draft_max: u32,
    /// Backend that ran the models, with its instruction set or device.
    pub backend: String,
    /// CPU threads.
    pub n_threads: u32,
    /// Number of timed runs of all tasks with drafts; there are as many without. Null in reports of older
    /// versions.
    #[serde(default)]
    pub n_runs: Option<u32>,
    /// Results of each task, in file order.
    pub tasks: Vec<TaskReport>,
    /// Totals of all tasks.
    pub aggregate: TasksAggregate,
    /// Totals of the tasks without a flag; null if no task has a flag, as it would equal `aggregate`.
    #[serde(default)]
    pub aggregate_unflagged: Option<TasksAggregate>,
    /// Seconds that all tasks took without drafts, prefill included: the median of all runs.
    pub plain_wall_s_total: f64,
    /// Comparison of the measured speedup with the one expected from pass costs; null if nothing was
    /// decoded.
    #[serde(default)]
    pub break_even: Option<BreakEven>,
}

/// Accepted draft tokens needed to break even, given the cost of forward passes, and those accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakEven {
    /// Accepted draft tokens per target pass.
    pub accepted_per_pass: f64,
    /// Accepted draft tokens per target pass that pay for drafting and for the wider passes, at the measured
    /// cost of a pass of each width.
    pub needed_per_pass: f64,
    /// Speedup over decoding without drafts expected from these costs.
    pub expected_speedup: f64,
    /// Measured speedup, in the run with the median ratio.
    pub speedup: f64,
    /// True if drafting is faster than plain decoding, or if the expected speedup is less than
    /// 5 percent.
    pub holds: bool,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskReport {
    /// Name of the task.
    pub task: String,
    /// Reasons why its acceptance rate is less meaningful than that of other tasks; empty for most.
    #[serde(default)]
    pub flags: Vec<TaskFlag>,
    /// Longest repeated passage of the generated text; null without one.
    #[serde(default)]
    pub longest_loop: Option<LoopReport>,
    /// Number of prompt tokens reused from the KV cache.
    #[serde(default)]
    pub cache_n: u64,
    /// Number of prompt tokens processed.
    pub prompt_n: u64,
    /// Prefill time with drafts, in milliseconds.
    #[serde(default)]
    pub prompt_ms: f64,
    /// Prompt tokens processed per second, with drafts; 0 if no time was measured.
    #[serde(default)]
    pub prompt_per_second: f64,
    /// Number of generated tokens.
    pub predicted_n: u64,
    /// Decoding time with drafts, in milliseconds.
    #[serde(default)]
    pub predicted_ms: f64,
    /// Number of draft tokens.
    pub draft_n: u64,
    /// Number of accepted draft tokens.
    pub draft_n_accepted: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub accept_rate: Option<f64>,
    /// Tokens generated per second with drafts, the median of all runs; null if no time was measured.
    pub predicted_per_second: Option<f64>,
    /// Tokens generated per second without drafts, the median of all runs.
    pub plain_per_second: Option<f64>,
    /// Speed with drafts divided by the speed without: the median of the ratios of neighbouring runs, 1 if
    /// nothing was drafted.
    pub speedup: Option<f64>,
    /// Speeds of all runs; null if nothing was drafted or no time was measured.
    #[serde(default)]
    pub speed: Option<SpeedComparison>,
    /// Acceptance by draft position, the first token first.
    pub by_draft_position: Vec<DraftPosition>,
}

/// Reason why the acceptance rate of a task is less meaningful than that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskFlag {
    /// The prompt asks for unpredictable text, so rejected drafts are expected.
    HighEntropy,
    /// Most of the text repeats one n-gram, which any speculator predicts.
    Looping,
}

/// A passage of the text that repeats one n-gram at least three times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoopReport {
    /// Length of the n-gram in tokens.
    pub n_gram: u64,
    /// Length of the passage in tokens.
    pub n_tokens: u64,
    /// Share of the passage in the text, from 0 to 1.
    pub share: f64,
}

/// Totals of several tasks, with drafts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TasksAggregate {
    /// Number of tasks.
    pub n_requests: u64,
    /// Number of generated tokens.
    pub total_predicted: u64,
    /// Number of draft tokens.
    pub total_draft: u64,
    /// Number of accepted draft tokens.
    pub total_draft_accepted: u64,
    /// Accepted draft tokens divided by drafted ones, rounded to four digits; null if nothing was drafted.
    pub aggregate_accept_rate: Option<f64>,
    /// Seconds that all tasks took, prefill included, rounded to two digits: the median of all runs.
    pub wall_s_total: f64,
}
