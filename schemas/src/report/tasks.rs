//! Result of `specrun bench --tasks`, under the names of the community's `mtp-bench` script where it
//! has one, so that numbers can be laid side by side.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DraftPosition, SpeedComparison};

/// Speed and acceptance by the sort of task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "bench-tasks")]
pub struct TasksReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The target's file.
    pub model: String,
    /// Speculators, in the order in which they were asked.
    pub speculators: Vec<String>,
    /// Which draft of a chain is verified: `first` or `best`; null in reports of older versions.
    #[serde(default)]
    pub policy: Option<String>,
    /// Longest draft.
    pub n_draft_max: u32,
    /// Where it ran, with the instruction set or device.
    pub backend: String,
    /// Threads.
    pub n_threads: u32,
    /// Timed runs of all tasks, with drafts and as many without; null in reports of older versions.
    #[serde(default)]
    pub n_runs: Option<u32>,
    /// Every task, in file order.
    pub tasks: Vec<TaskReport>,
    /// All tasks together.
    pub aggregate: TasksAggregate,
    /// The tasks without a flag together; null where none has one, as then it is the same.
    #[serde(default)]
    pub aggregate_unflagged: Option<TasksAggregate>,
    /// Seconds that the same took without drafts, prompts included: the median of all runs.
    pub plain_wall_s_total: f64,
    /// Whether drafting pays where the costs of passes say so; null where nothing was decoded.
    #[serde(default)]
    pub break_even: Option<BreakEven>,
}

/// What drafting had to bring, by what passes cost, and what it brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakEven {
    /// Draft tokens accepted a pass.
    pub accepted_per_pass: f64,
    /// As many as would have paid for the wider passes and for the drafters, at the measured cost of
    /// a pass of each width.
    pub needed_per_pass: f64,
    /// Tokens a second over those without drafts, by these numbers.
    pub expected_speedup: f64,
    /// The same as it was measured, in the run with the median ratio.
    pub speedup: f64,
    /// Whether drafting is faster than plain decoding wherever these numbers say so, by 5 percent or
    /// more.
    pub holds: bool,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskReport {
    /// Its name.
    pub task: String,
    /// Why its acceptance says less than that of other tasks; empty for most.
    #[serde(default)]
    pub flags: Vec<TaskFlag>,
    /// The longest passage of the text that repeats itself; null without one.
    #[serde(default)]
    pub longest_loop: Option<LoopReport>,
    /// Prompt tokens taken from the caches.
    #[serde(default)]
    pub cache_n: u64,
    /// Prompt tokens that were run.
    pub prompt_n: u64,
    /// Time to run them, with drafts.
    #[serde(default)]
    pub prompt_ms: f64,
    /// Prompt tokens run each second, with drafts; 0 if no time was taken.
    #[serde(default)]
    pub prompt_per_second: f64,
    /// Tokens written.
    pub predicted_n: u64,
    /// Time to write them, with drafts.
    #[serde(default)]
    pub predicted_ms: f64,
    /// Draft tokens.
    pub draft_n: u64,
    /// Of those, accepted.
    pub draft_n_accepted: u64,
    /// Accepted over drafted; null where nothing was drafted.
    pub accept_rate: Option<f64>,
    /// Tokens written each second with drafts, the median of all runs; null if no time was taken.
    pub predicted_per_second: Option<f64>,
    /// Tokens written each second without drafts, the median of all runs.
    pub plain_per_second: Option<f64>,
    /// Speed with drafts over the speed without: the median of the ratios of neighbouring runs, 1 where
    /// nothing was drafted.
    pub speedup: Option<f64>,
    /// All runs; null where nothing was drafted or no time was taken.
    #[serde(default)]
    pub speed: Option<SpeedComparison>,
    /// By place in the draft, the first token first.
    pub by_draft_position: Vec<DraftPosition>,
}

/// Why the acceptance of a task says less than that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskFlag {
    /// The prompt asks for text that nothing can foresee, so drafts are rejected by intent.
    HighEntropy,
    /// Most of the text is one n-gram over and over, which any drafter foresees.
    Looping,
}

/// A passage of a text that is one n-gram, three times or more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoopReport {
    /// Tokens of the n-gram.
    pub n_gram: u64,
    /// Tokens of the passage.
    pub n_tokens: u64,
    /// Its share of the text.
    pub share: f64,
}

/// Several tasks together, with drafts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TasksAggregate {
    /// Tasks.
    pub n_requests: u64,
    /// Tokens written.
    pub total_predicted: u64,
    /// Draft tokens.
    pub total_draft: u64,
    /// Of those, accepted.
    pub total_draft_accepted: u64,
    /// Accepted over drafted, to four digits; null where nothing was drafted.
    pub aggregate_accept_rate: Option<f64>,
    /// Seconds that all took, prompts included, to two digits: the median of all runs.
    pub wall_s_total: f64,
}
