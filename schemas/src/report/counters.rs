//! Counters of decoding.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters of one or more sequences.
///
/// A target pass takes the newest token and a draft, and commits the accepted draft tokens and
/// one bonus token sampled by the target. Draft tokens after an end-of-sequence token are not counted
/// as accepted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Number of generated tokens, bonus tokens included.
    pub n_tokens: u64,
    /// Number of draft tokens that the target verified.
    pub n_drafted: u64,
    /// Number of draft tokens that the target accepted.
    pub n_accepted: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub acceptance: Option<f64>,
    /// Number of target passes after the prompt.
    pub n_target_passes: u64,
    /// Mean number of accepted and bonus tokens per target pass, an upper bound of the speedup. 1 in
    /// plain decoding; null without a pass.
    pub tokens_per_target_pass: Option<f64>,
    /// Entry `k` is the number of target passes that accepted `k` draft tokens. Passes without a draft count
    /// as 0.
    pub accepted_lengths: Vec<u64>,
    /// Acceptance by draft position, the first token first.
    pub by_draft_position: Vec<DraftPosition>,
    /// Counters of each speculator, in the order they are tried.
    pub by_speculator: Vec<SpeculatorCounters>,
    /// Decoding time after the prompt, in milliseconds.
    pub decode_ms: f64,
    /// Tokens generated per second of decoding time; null if no time was measured.
    pub tokens_per_s: Option<f64>,
    /// Target weights read by all passes, divided by the decoding time, in units of 10^9 bytes per
    /// second; null if no time was measured.
    pub gigabytes_per_s: Option<f64>,
}

/// Acceptance at one draft position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DraftPosition {
    /// Number of drafts that reached this position.
    pub n_drafted: u64,
    /// Number of drafts whose token at this position was accepted.
    pub n_accepted: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub acceptance: Option<f64>,
}

/// Counters of one speculator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeculatorCounters {
    /// Name of the speculator, such as `draft-mtp`.
    pub name: String,
    /// Number of verified drafts; llama.cpp's `#gen drafts`.
    pub n_drafts: u64,
    /// Number of drafts with at least one accepted token; `#acc drafts`.
    pub n_accepted_drafts: u64,
    /// Number of draft tokens; `#gen tokens`.
    pub n_drafted: u64,
    /// Number of accepted draft tokens; `#acc tokens`.
    pub n_accepted: u64,
    /// Mean number of tokens committed per verified draft, the bonus token included; `#mean acc
    /// len`. Null if no draft was verified.
    pub mean_accepted_length: Option<f64>,
    /// Acceptance by draft position, the first token first; `#acc rate/pos`.
    pub by_draft_position: Vec<DraftPosition>,
    /// Number of `begin` calls, one per prompt. This and the next two fields are `#calls(b,g,a)`. Calls
    /// are counted for all sequences together and are 0 in the counters of one sequence.
    pub n_calls_begin: u64,
    /// Number of `draft` calls, each for any number of sequences.
    pub n_calls_draft: u64,
    /// Number of `accept` calls for its own drafts.
    pub n_calls_accept: u64,
    /// Time in `begin`, in milliseconds; with those in `draft` and `accept`, `dur(b,g,a)`. Times are
    /// measured for all sequences together and are 0 in the counters of one sequence.
    pub begin_ms: f64,
    /// Time to process the target's passes, prefill included, in milliseconds.
    pub process_ms: f64,
    /// Time in `draft`, in milliseconds.
    pub draft_ms: f64,
    /// Time in `accept`, in milliseconds.
    pub accept_ms: f64,
}
