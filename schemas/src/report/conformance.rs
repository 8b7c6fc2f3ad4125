//! Traces of the conformance kit, and the result of `specrun conformance`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PositionLogits, Verdict};

/// A decoding run that every engine can repeat, and its expected result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "conformance-trace")]
pub struct ConformanceTrace {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The target.
    pub model: TracedFile,
    /// Files of the speculators.
    pub drafts: Vec<TracedFile>,
    /// Speculators, in the order in which they are asked; empty for plain decoding.
    pub spec_types: Vec<String>,
    /// Maximum draft length of model-based speculators, in tokens.
    pub n_draft_max: usize,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Number of tokens to generate greedily; tokens that end a text do not end it.
    pub n_predict: usize,
    /// The result; null until it is recorded.
    #[serde(default)]
    pub expected: Option<ExpectedTrace>,
}

/// A model file of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracedFile {
    /// Path of the file, relative to the folder of the trace.
    pub path: String,
    /// SHA-256 of the file in hexadecimal; empty until the result is recorded.
    pub sha256: String,
}

/// Expected result of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedTrace {
    /// Maximum difference of a logit of `logits` in engines that do not compute the same bits.
    pub tolerance: f32,
    /// Smallest lead of a generated token over the second best. Engines within the tolerance generate the
    /// same tokens if it exceeds twice the tolerance.
    pub min_lead: f32,
    /// The generated token ids.
    pub tokens: Vec<u32>,
    /// Number of drafted tokens, the sum over `rounds`.
    pub n_drafted: usize,
    /// Number of accepted draft tokens, the sum over `rounds`.
    pub n_accepted: usize,
    /// Target passes after the one over the prompt, in order. The pass over the prompt gives the first token.
    pub rounds: Vec<ConformanceRound>,
    /// Hash of all logits of `logits`, in order: of the full rows, one after another.
    pub logits_hash: String,
    /// Logits from which each token was chosen, in order.
    pub logits: Vec<PositionLogits>,
}

/// One verified target pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConformanceRound {
    /// Number of tokens in the target's KV cache before the pass.
    pub position: usize,
    /// Name of the speculator whose draft was verified; null without a draft.
    pub drafter: Option<String>,
    /// Draft token ids.
    pub drafted: Vec<u32>,
    /// Number of accepted draft tokens.
    pub n_accepted: usize,
    /// Token ids that the pass added to the text: the accepted ones, and the target's choice after them.
    pub committed: Vec<u32>,
}

/// Result of `specrun conformance`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "conformance")]
pub struct ConformanceReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Device and instruction set.
    pub backend: String,
    /// Fail if a trace differs.
    pub verdict: Verdict,
    /// One result for each trace.
    pub traces: Vec<TraceResult>,
}

/// Result of one trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceResult {
    /// File name of the trace without its extension.
    pub name: String,
    /// Pass if everything is equal to the expected result, bit for bit.
    pub verdict: Verdict,
    /// Number of generated tokens.
    pub n_tokens: usize,
    /// Number of drafted tokens.
    pub n_drafted: usize,
    /// Number of accepted draft tokens.
    pub n_accepted: usize,
    /// Description of the first difference; null if there is none.
    pub difference: Option<String>,
}
