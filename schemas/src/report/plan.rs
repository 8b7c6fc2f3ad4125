//! Result of `specrun plan`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory that a run needs, computed before anything is allocated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "plan")]
pub struct PlanReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the target's file.
    pub model: String,
    /// Sequences decoded at once.
    pub n_seq: u64,
    /// Context length of each sequence, in tokens.
    pub n_ctx: u64,
    /// Memory of the target, then of each speculator.
    pub parts: Vec<PlanPart>,
    /// Memory of all parts, in bytes.
    pub total_bytes: u64,
    /// Free memory at present, in bytes; null if the system does not report it.
    pub free_bytes: Option<u64>,
    /// True if the run fits in free memory; null if that is unknown.
    pub fits: Option<bool>,
}

/// Memory of the target or of one speculator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanPart {
    /// `target`, or the name of the speculator.
    pub name: String,
    /// Path of the model file; null for a speculator without a model.
    pub file: Option<String>,
    /// Weights used by this part alone, in bytes as stored in the file. Each weight is held once, mapped
    /// from the file or repacked.
    pub weight_bytes: u64,
    /// KV cache, in bytes.
    pub kv_bytes: u64,
    /// Element types of the K and V caches; null for a part without caches.
    pub kv_types: Option<[String; 2]>,
    /// Current states of recurrent layers, in bytes.
    pub state_bytes: u64,
    /// Earlier states kept for rollback, in bytes.
    pub kept_state_bytes: u64,
    /// States of checkpoints, in bytes.
    pub checkpoint_bytes: u64,
    /// Hidden states of the target that the draft model reads, in bytes.
    pub hidden_bytes: u64,
    /// Activations of the largest forward pass, in bytes.
    pub activation_bytes: u64,
    /// Logits of the largest forward pass, in bytes.
    pub logit_bytes: u64,
    /// N-gram tables, in bytes; initial size for tables that grow with the text.
    pub table_bytes: u64,
    /// Maximum draft length of the speculator in tokens; for the target, the longest of all speculators.
    pub n_draft_max: u64,
    /// Number of earlier states kept for each sequence.
    pub n_kept_states: u64,
    /// Method of rolling back rejected draft tokens; null for a part without caches.
    pub rollback: Option<Rollback>,
}

/// Method of rolling back rejected draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rollback {
    /// There is only a KV cache, which is truncated.
    Truncation,
    /// A recurrent state is kept for each token of the longest draft.
    States,
    /// States for the longest draft would need more than a quarter of the memory of the weights, so fewer are
    /// kept. A longer rollback restores a checkpoint and reruns the tokens after it.
    Checkpoint,
}
