//! Decoding speeds measured several times.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Median and range of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Median; for an even number of values, the mean of the middle two.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

/// Range that contains a mean with a probability of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Decoding with drafts and without, measured alternately on the same prompts after a warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeedComparison {
    /// Number of timed runs with drafts; there are as many without.
    pub n_runs: u32,
    /// Tokens generated per second with drafts.
    pub tokens_per_s: Spread,
    /// Tokens generated per second without drafts.
    pub plain_tokens_per_s: Spread,
    /// Speed with drafts divided by the speed without, for each pair of neighbouring runs.
    pub ratio: Spread,
    /// The ratio of each pair, in the order of the runs; empty in reports of older versions.
    #[serde(default)]
    pub ratios: Vec<f64>,
    /// 95 % confidence interval of the mean ratio; null with fewer than three pairs and in reports of older
    /// versions.
    #[serde(default)]
    pub interval: Option<Interval>,
    /// Verdict: a change if the interval does not contain 1.
    pub change: SpeedChange,
    /// Median speed with drafts on the prompts of each kind; empty if several sequences are decoded at
    /// once, because they share their passes.
    pub by_kind: Vec<KindSpeed>,
}

/// The verdict on a comparison of speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SpeedChange {
    /// Drafts are faster: the interval of the ratio is above 1.
    Faster,
    /// Drafts are slower: the interval of the ratio is below 1.
    Slower,
    /// The interval contains 1, or there were fewer than three pairs.
    #[serde(alias = "within-spread")]
    Unclear,
}

/// Speed on the prompts of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KindSpeed {
    /// The `kind` of the prompts; null for prompts without one.
    pub kind: Option<String>,
    /// Tokens generated per second with drafts.
    pub tokens_per_s: f64,
}
