//! Whether logits depend on anything but the text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Verdict;

/// Texts in random passes, beside others and on other numbers of threads, against the same texts
/// token by token and alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvarianceReport {
    /// Texts, from the prompts.
    pub n_texts: u64,
    /// Numbers of threads that they ran on.
    pub threads: Vec<u32>,
    /// Passes in random ways.
    pub n_passes: u64,
    /// Rows of logits compared, those run again after a rollback included.
    pub n_rows: u64,
    /// Rows with another hash.
    pub n_different: u64,
    /// The first of them.
    pub differences: Vec<RowDifference>,
    /// Fail if any differs.
    pub verdict: Verdict,
}

/// A row of logits that depends on how it was computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowDifference {
    /// The prompt's `id`.
    pub prompt_id: String,
    /// Position in it, from 0.
    pub position: u64,
    /// Tokens of the pass.
    pub n_tokens: u64,
    /// Sequences at once.
    pub n_sequences: u64,
    /// Threads.
    pub n_threads: u32,
    /// Hash of the row alone, in hexadecimal.
    pub alone: String,
    /// Hash in the pass.
    pub found: String,
}
