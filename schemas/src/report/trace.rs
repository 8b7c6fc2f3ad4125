//! One line of `specrun generate --spec-trace`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Rollback;

/// One verified target pass of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "spec-trace")]
pub struct TraceRound {
    /// Number of the target pass, from 0; all sequences of a pass have the same number.
    pub round: u64,
    /// The prompt's `id`.
    pub prompt_id: String,
    /// Index of the sequence that decodes the prompt.
    pub sequence: usize,
    /// Number of tokens in the target's KV cache before the pass.
    pub position: usize,
    /// Name of the speculator whose draft was verified; null without a draft.
    pub drafter: Option<String>,
    /// Draft token ids.
    pub drafted: Vec<u32>,
    /// Number of accepted draft tokens.
    pub n_accepted: usize,
    /// Method by which the target rolled back the rejected tokens; null if there were none.
    pub rollback: Option<Rollback>,
    /// Number of committed tokens that the next pass reruns, because no state was kept at the accepted length.
    pub n_rerun: usize,
}
