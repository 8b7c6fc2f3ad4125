//! Scores of a target on the prompts, and their comparison with an earlier report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Spread, Verdict};

/// Probabilities that the target assigns to the prompts and to its own continuations without drafts. A
/// later report is compared with them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetScores {
    /// Number of scored prompt tokens: all but the first of each prompt.
    pub n_scored: u64,
    /// Perplexity: `exp` of the mean negative log-likelihood of the scored tokens; null without any.
    pub perplexity: Option<f64>,
    /// Number of logit rows computed, one for each entry of `tokens` in `prompts`.
    #[serde(default)]
    pub n_rows: u64,
    /// Number of logit rows that contain NaN or infinity.
    #[serde(default)]
    pub n_not_finite: u64,
    /// Tokens generated per second without drafts, at the report's number of sequences: the median of
    /// `speed`; null if no speed was measured.
    pub tokens_per_s: Option<f64>,
    /// Tokens per second of all timed runs without drafts; null if no speed was measured.
    #[serde(default)]
    pub speed: Option<Spread>,
    /// Number of most likely tokens recorded for each position.
    pub n_top: u32,
    /// Scores of each prompt, in file order.
    pub prompts: Vec<PromptScores>,
}

/// One prompt and its continuation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptScores {
    /// The prompt's `id`.
    pub prompt_id: String,
    /// Number of entries of `tokens` that belong to the prompt.
    pub n_prompt_tokens: u64,
    /// Token ids of the prompt, followed by those generated without drafts.
    pub tokens: Vec<u32>,
    /// The `n_top` most likely next tokens after each token, in order, the most likely first. Each takes eight
    /// bytes: the id as u32 and the natural logarithm of its probability as f32, both little-endian. The
    /// whole array is encoded in base64.
    pub likeliest: String,
}

/// Comparison of a report with an earlier one on the same prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselineReport {
    /// Path of the earlier report.
    pub report: String,
    /// Target of the earlier report.
    pub model: String,
    /// Number of prompts in both reports.
    pub n_prompts: u64,
    /// Number of positions at which both reports predict a next token.
    pub n_positions: u64,
    /// Number of prompts whose continuation without drafts equals the earlier one, token for token.
    pub n_same_text: u64,
    /// Divergence of the next token's distribution from the earlier one's; null in reports of older
    /// versions.
    #[serde(default)]
    pub kl: Option<KlDivergence>,
    /// All compared measures; those whose tolerance allows any value are left out.
    pub measures: Vec<Measure>,
    /// Fail if any measure is worse than its limit.
    pub verdict: Verdict,
}

/// Kullback-Leibler divergence over all compared positions, in nats. All tokens that were not recorded
/// count as one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KlDivergence {
    /// The mean.
    pub mean: f64,
    /// Standard error of the mean, as if positions were independent; null for a single position.
    pub standard_error: Option<f64>,
    /// The median.
    pub median: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p99_9: f64,
    /// The largest value.
    pub max: f64,
}

/// One measure compared with its earlier value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Quantity that was measured.
    pub kind: MeasureKind,
    /// Name of the speculator; null for the target alone.
    pub speculator: Option<String>,
    /// Draft position, from 1; null for a measure that does not belong to one position.
    pub draft_position: Option<u32>,
    /// Value in the earlier report.
    pub baseline: f64,
    /// Value in this report.
    pub found: f64,
    /// Worst value that passes.
    pub limit: f64,
    /// True if the value is within the limit.
    pub holds: bool,
}

/// Quantities that are compared with an earlier report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MeasureKind {
    /// Mean Kullback-Leibler divergence of the next token's distribution from the earlier one's, in
    /// nats. All tokens that were not recorded count as one, so it is a lower bound of the full divergence.
    MeanKl,
    /// Share of positions whose most likely next token equals the earlier one.
    TopAgreement,
    /// Share of prompts whose continuation without drafts equals the earlier one.
    SameText,
    /// Perplexity of the prompts.
    Perplexity,
    /// Acceptance rate at one draft position, or over all positions.
    Acceptance,
    /// Tokens generated per second.
    TokensPerS,
}
