//! Result of `specrun plan`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run takes of memory, before any of it is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "plan")]
pub struct PlanReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The target's file.
    pub model: String,
    /// Sequences at once.
    pub n_seq: u64,
    /// Positions of each.
    pub n_ctx: u64,
    /// The target, then each speculator.
    pub parts: Vec<PlanPart>,
    /// All of them, in bytes.
    pub total_bytes: u64,
    /// Memory that is free now, in bytes; absent where the system does not tell.
    pub free_bytes: Option<u64>,
    /// Whether it fits; absent like that.
    pub fits: Option<bool>,
}

/// What one part of a run takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanPart {
    /// `target`, or the speculator's name.
    pub name: String,
    /// Its file; absent for what needs none.
    pub file: Option<String>,
    /// Weights that only it needs, in bytes, as the file holds them: there is one copy of each, mapped
    /// from the file or laid out for products.
    pub weight_bytes: u64,
    /// Keys and values of all positions, in bytes.
    pub kv_bytes: u64,
    /// The types that keys and values are kept in; absent for what has no caches.
    pub kv_types: Option<[String; 2]>,
    /// The newest states of recurrent layers, in bytes.
    pub state_bytes: u64,
    /// The states kept behind them, in bytes.
    pub kept_state_bytes: u64,
    /// The states of checkpoints, in bytes.
    pub checkpoint_bytes: u64,
    /// Hidden states of the target that a draft feeds on, in bytes.
    pub hidden_bytes: u64,
    /// Activations of the largest pass, in bytes.
    pub activation_bytes: u64,
    /// The logits that come of it, in bytes.
    pub logit_bytes: u64,
    /// Tables of n-grams, in bytes; those that grow with the text, as they begin.
    pub table_bytes: u64,
    /// Longest draft of it, or for the target of all.
    pub n_draft_max: u64,
    /// States kept behind the newest of each sequence.
    pub n_kept_states: u64,
    /// How a draft that went wrong is taken back; absent for what has no caches.
    pub rollback: Option<Rollback>,
}

/// How a context goes back to where a draft was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rollback {
    /// There are only keys and values, which just end earlier.
    Truncation,
    /// A state is kept for each token of the longest draft.
    States,
    /// States for the longest draft would take more than a quarter of the weights. As many are kept as
    /// fit; going back further, the tokens behind a checkpoint are run again.
    Checkpoint,
}
