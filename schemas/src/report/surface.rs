//! Acceptance and speed over context length, temperature and task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Acceptance and speed of each speculator over context length, temperature and task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SurfaceReport {
    /// Context lengths, in tokens before the first generated one, ascending.
    pub contexts: Vec<u64>,
    /// Sampling temperatures, ascending.
    pub temperatures: Vec<f64>,
    /// Number of timed runs of each cell, with and without drafts.
    pub n_runs: u32,
    /// Results, by speculator, context length, temperature and task.
    pub cells: Vec<SurfaceCell>,
    /// Context lengths at which drafts stop or start to save time, by speculator and temperature.
    pub break_even: Vec<SurfaceBreakEven>,
}

/// Acceptance and speed at one context length and temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SurfaceCell {
    /// Name of the speculator; for a chain, all names in order, separated by commas.
    pub speculator: String,
    /// Tokens before the first generated one.
    pub n_context: u64,
    /// Sampling temperature.
    pub temperature: f64,
    /// Kind of the prompts; null for all of them together.
    pub task: Option<String>,
    /// Number of texts.
    pub n_texts: u64,
    /// Number of texts that are identical to those without drafts.
    pub n_identical: u64,
    /// Number of draft tokens that the target verified.
    pub n_drafted: u64,
    /// Number of draft tokens that the target accepted.
    pub n_accepted: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub acceptance: Option<f64>,
    /// Acceptance at the first draft position; null if nothing was drafted.
    pub first_acceptance: Option<f64>,
    /// Mean number of accepted and bonus tokens per target pass; null without a pass.
    pub tokens_per_target_pass: Option<f64>,
    /// Tokens generated per second with drafts, the median of all runs.
    pub tokens_per_s: Option<f64>,
    /// Tokens generated per second without drafts, the median of all runs.
    pub plain_tokens_per_s: Option<f64>,
    /// Median of the ratios of neighboring runs with and without drafts.
    pub speedup: Option<f64>,
}

/// The context length at which drafts stop or start to save time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SurfaceBreakEven {
    /// Name of the speculator.
    pub speculator: String,
    /// Sampling temperature.
    pub temperature: f64,
    /// Context length at which the speedup over all tasks is 1: between two measured lengths, by the line through
    /// their speedups over the logarithm of the length. Null if it is on one side of 1 at all lengths.
    pub n_context: Option<f64>,
    /// Smallest and largest measured speedup; null if no speed was measured.
    pub speedups: Option<[f64; 2]>,
}
