//! Check that logits depend only on the preceding tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Verdict;

/// Logits of texts in random batches, together with other sequences and on several thread counts, compared
/// with decoding each text alone, token by token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvarianceReport {
    /// Number of texts, taken from the prompts.
    pub n_texts: u64,
    /// Thread counts that were tested.
    pub threads: Vec<u32>,
    /// Number of random forward passes.
    pub n_passes: u64,
    /// Number of logit rows compared, those recomputed after a rollback included.
    pub n_rows: u64,
    /// Number of rows with a different hash.
    pub n_different: u64,
    /// First different rows.
    pub differences: Vec<RowDifference>,
    /// Fail if any row differs.
    pub verdict: Verdict,
}

/// A row of logits that depends on the batch or on the thread count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowDifference {
    /// The prompt's `id`.
    pub prompt_id: String,
    /// Position in the sequence, from 0.
    pub position: u64,
    /// Number of tokens in the pass.
    pub n_tokens: u64,
    /// Number of sequences in the pass.
    pub n_sequences: u64,
    /// CPU threads.
    pub n_threads: u32,
    /// Hash of the row when decoded alone, in hexadecimal.
    pub alone: String,
    /// Hash of the row in this pass, in hexadecimal.
    pub found: String,
}
