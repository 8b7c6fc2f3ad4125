//! What decoding counted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters of one or more sequences.
///
/// A target pass takes the newest token and a draft, and commits the accepted draft tokens and
/// one bonus token of the target's own. Draft tokens behind an end of text are not counted as
/// accepted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Tokens written, bonus tokens included.
    pub n_tokens: u64,
    /// Draft tokens that the target was asked about.
    pub n_drafted: u64,
    /// Draft tokens that the target agreed with.
    pub n_accepted: u64,
    /// Accepted over drafted; null where nothing was drafted.
    pub acceptance: Option<f64>,
    /// Passes of the target behind the prompt.
    pub n_target_passes: u64,
    /// Accepted and bonus tokens of a target pass on average: what speculation can gain. 1 in
    /// plain decoding; null without a pass.
    pub tokens_per_target_pass: Option<f64>,
    /// Entry `k`: target passes that accepted `k` draft tokens, passes without a draft included.
    pub accepted_lengths: Vec<u64>,
    /// By place in the draft, the first token first.
    pub by_draft_position: Vec<DraftPosition>,
    /// By speculator, in the order they were asked.
    pub by_speculator: Vec<SpeculatorCounters>,
    /// Time behind the prompt.
    pub decode_ms: f64,
    /// Tokens written each second of that time; null if none was taken.
    pub tokens_per_s: Option<f64>,
    /// Bytes of target weights that the passes had to read, over that time, in units of 10^9
    /// bytes a second; null if none was taken.
    pub gigabytes_per_s: Option<f64>,
}

/// How one place in the draft fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DraftPosition {
    /// Drafts that reached this place.
    pub n_drafted: u64,
    /// Of those, accepted here.
    pub n_accepted: u64,
    /// Accepted over drafted; null where nothing was drafted.
    pub acceptance: Option<f64>,
}

/// How one speculator fared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeculatorCounters {
    /// Its name, such as `draft-mtp`.
    pub name: String,
    /// Drafts that were not empty.
    pub n_drafts: u64,
    /// Draft tokens.
    pub n_drafted: u64,
    /// Of those, accepted.
    pub n_accepted: u64,
}
