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
    /// The sequence that the prompt was given.
    pub sequence: usize,
    /// Tokens in the target's caches before the pass.
    pub position: usize,
    /// The speculator whose draft was verified; null without a draft.
    pub drafter: Option<String>,
    /// The drafted tokens.
    pub drafted: Vec<u32>,
    /// Accepted tokens of the draft.
    pub n_accepted: usize,
    /// How the target dropped the rejected tokens; null if there were none.
    pub rollback: Option<Rollback>,
    /// Committed tokens that the next pass runs again, because no state was kept at the accepted length.
    pub n_rerun: usize,
}
