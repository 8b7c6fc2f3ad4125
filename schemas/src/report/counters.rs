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
    /// Drafts that were checked; the peer's `#gen drafts`.
    pub n_drafts: u64,
    /// Of those, with at least one token accepted; `#acc drafts`.
    pub n_accepted_drafts: u64,
    /// Draft tokens; `#gen tokens`.
    pub n_drafted: u64,
    /// Of those, accepted; `#acc tokens`.
    pub n_accepted: u64,
    /// Tokens that a check of its drafts committed on average, the bonus token included; `#mean acc
    /// len`. Null where none was checked.
    pub mean_accepted_length: Option<f64>,
    /// By place in the draft, the first token first; `#acc rate/pos`.
    pub by_draft_position: Vec<DraftPosition>,
    /// Prompts it was told of; this and the next two are `#calls(b,g,a)`. Counted, like the next,
    /// for all sequences together; 0 in the counters of one.
    pub n_calls_begin: u64,
    /// Times it was asked for drafts, for any number of sequences at once.
    pub n_calls_draft: u64,
    /// Times it was told what came of a draft of its own.
    pub n_calls_accept: u64,
    /// Time to begin with a prompt; with the drafting's and accepting's, `dur(b,g,a)`. Times are
    /// counted for all sequences together, 0 in the counters of one.
    pub begin_ms: f64,
    /// Time to follow the target's passes, prompts included.
    pub process_ms: f64,
    /// Time to draft.
    pub draft_ms: f64,
    /// Time to take in what was accepted.
    pub accept_ms: f64,
}
