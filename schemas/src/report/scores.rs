//! What a target makes of the prompts, and how that compares with an earlier report's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Spread, Verdict};

/// What the target makes of the prompts and of its own text without drafts: enough for a later
/// report to be compared with this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetScores {
    /// Tokens of the prompts whose probability counts: all but the first of each.
    pub n_scored: u64,
    /// `exp` of their mean negative log-likelihood; null without any.
    pub perplexity: Option<f64>,
    /// Rows of logits that were computed, one for each token below.
    #[serde(default)]
    pub n_rows: u64,
    /// Of those, rows that hold NaN or infinity.
    #[serde(default)]
    pub n_not_finite: u64,
    /// Tokens written each second without drafts, at the report's number of sequences: the median of
    /// `speed`; null where no speed was measured.
    pub tokens_per_s: Option<f64>,
    /// The speed of all timed runs without drafts; null where no speed was measured.
    #[serde(default)]
    pub speed: Option<Spread>,
    /// Likeliest tokens that are kept of each position.
    pub n_top: u32,
    /// Each prompt, in file order.
    pub prompts: Vec<PromptScores>,
}

/// One prompt and its continuation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptScores {
    /// The prompt's `id`.
    pub prompt_id: String,
    /// How many of the tokens are the prompt's.
    pub n_prompt_tokens: u64,
    /// The prompt, and behind it what the target wrote without drafts.
    pub tokens: Vec<u32>,
    /// For each token, in order, the `n_top` likeliest next ones, the likeliest first, eight bytes
    /// each: the id as u32 and the natural logarithm of its probability as f32, both little-endian;
    /// all of it in base64.
    pub likeliest: String,
}

/// A report measured against an earlier one on the same prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselineReport {
    /// The earlier report's file.
    pub report: String,
    /// The target that it is about.
    pub model: String,
    /// Prompts that both have.
    pub n_prompts: u64,
    /// Positions at which both predict a next token.
    pub n_positions: u64,
    /// Prompts whose text without drafts is the earlier one's, token for token.
    pub n_same_text: u64,
    /// Divergence of the next token's distribution from the earlier one's; null in reports of older
    /// versions.
    #[serde(default)]
    pub kl: Option<KlDivergence>,
    /// Every number that was compared; one whose tolerance allows any value is left out.
    pub measures: Vec<Measure>,
    /// Fail if a limit was passed.
    pub verdict: Verdict,
}

/// Kullback-Leibler divergence over all compared positions, in nats, with all but the kept tokens as
/// one.
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

/// One number against its earlier value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// What was measured.
    pub kind: MeasureKind,
    /// The speculator; null for the target alone.
    pub speculator: Option<String>,
    /// Place in the draft, from 1; null where it is about no place.
    pub draft_position: Option<u32>,
    /// The earlier value.
    pub baseline: f64,
    /// The value now.
    pub found: f64,
    /// The worst that passes.
    pub limit: f64,
    /// Whether the limit holds.
    pub holds: bool,
}

/// What is compared with an earlier report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MeasureKind {
    /// Mean Kullback-Leibler divergence of the next token's distribution from the earlier one's, in
    /// nats, with all but the kept tokens as one: a lower bound of the full divergence.
    MeanKl,
    /// Share of positions whose likeliest next token is the earlier one's.
    TopAgreement,
    /// Share of prompts whose text without drafts is the earlier one's.
    SameText,
    /// Perplexity of the prompts.
    Perplexity,
    /// Acceptance at a place of the draft, or over all places.
    Acceptance,
    /// Tokens written each second.
    TokensPerS,
}
