//! Result of `specrun verify`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AgreementReport, BaselineReport, Counters, InvarianceReport, Outcome, Provenance, Rollback,
    SpeedComparison, SurfaceReport, TargetScores, TokenLogit, Verdict, WidthCost,
};

/// Result of verifying that speculation does not change tokens and logits, and that enough draft tokens
/// are accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "verify")]
pub struct VerifyReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, machine and inputs; null in reports of older versions.
    #[serde(default)]
    pub provenance: Option<Provenance>,
    /// Path of the target's file.
    pub model: String,
    /// Paths of the draft files, separated by commas; null without any.
    pub draft: Option<String>,
    /// Backend that ran the models, with its instruction set or device.
    pub backend: String,
    /// CPU threads.
    pub n_threads: u32,
    /// Maximum draft length in tokens, `--spec-draft-n-max`.
    pub n_draft_max: u32,
    /// Sequences decoded at once.
    pub n_parallel: u32,
    /// Policy that picks the draft of a chain to verify: `first` or `best`; null in reports of older versions.
    #[serde(default)]
    pub policy: Option<String>,
    /// Preflight check of the files, before anything runs; null if it was not requested.
    pub fit: Option<FitReport>,
    /// Every prompt with every speculator, prompts in file order; empty if the preflight failed or there is
    /// no speculator.
    pub runs: Vec<VerifyRun>,
    /// Totals of each speculator alone, then of all of them as one chain if there are several; empty
    /// if only the target is verified.
    pub speculators: Vec<SpeculatorVerdict>,
    /// Cost of forward passes over 1, 2, .. tokens, up to the longest draft; empty if nothing was decoded.
    #[serde(default)]
    pub widths: Vec<WidthCost>,
    /// Results for other decoding settings on the same prompts; empty without `--matrix`.
    pub matrix: Vec<MatrixCell>,
    /// Check that logits depend only on the preceding tokens; null if it was not requested.
    pub invariance: Option<InvarianceReport>,
    /// Drafts at every position of known texts, compared with the target's choices; null if it was not requested.
    #[serde(default)]
    pub agreement: Option<AgreementReport>,
    /// Acceptance and speed over context length, temperature and task; null without `--contexts` and `--temps`.
    #[serde(default)]
    pub surface: Option<SurfaceReport>,
    /// Scores of the target on the prompts, the baseline for later reports; null if nothing was
    /// decoded.
    pub target: Option<TargetScores>,
    /// Comparison with an earlier report; null without `--baseline`.
    pub baseline: Option<BaselineReport>,
    /// Checks that ran and failed; empty if all hold.
    pub failed: Vec<FailedCheck>,
    /// Pass if no check failed.
    pub verdict: Verdict,
}

/// One prompt with one speculator, compared with plain decoding of the same prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRun {
    /// The prompt's `id`.
    pub prompt_id: String,
    /// The prompt's `kind`; null if it has none.
    pub prompt_kind: Option<String>,
    /// Number of prompt tokens.
    pub n_prompt_tokens: u64,
    /// Name of the speculator; for a chain, all names in order, separated by commas.
    pub speculator: String,
    /// True if all tokens equal those of plain decoding.
    pub tokens_identical: bool,
    /// True if the logits of every committed position equal those of plain decoding, bit for bit.
    pub logits_identical: bool,
    /// First position with different tokens or logits; null if there is none.
    pub first_difference: Option<FirstDifference>,
    /// Counters of speculative decoding.
    pub counters: Counters,
    /// Hash of the logits of the last committed position, in hexadecimal.
    pub last_logits_hash: String,
}

/// First position at which speculative decoding differs from plain decoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirstDifference {
    /// Position in the sequence, the prompt included, from 0.
    pub position: u64,
    /// Result of plain decoding at this position.
    pub plain: Difference,
    /// Result of speculative decoding at this position.
    pub speculative: Difference,
    /// Method of rolling back the target's caches after a rejected draft token.
    #[serde(default)]
    pub rollback: Option<Rollback>,
}

/// Result of one of the two decodings at a position where they differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Token id; null if this decoding had ended.
    pub token: Option<u32>,
    /// Text of the token.
    #[serde(default)]
    pub text: Option<String>,
    /// Hash of the logits from which the token was chosen; null if this decoding had ended.
    pub logits_hash: Option<String>,
    /// Logit of the token; null if this decoding had ended.
    pub logit: Option<f32>,
    /// Most likely of all other tokens, with its logit. The margin is the difference of the two logits.
    pub runner_up: Option<TokenLogit>,
}

/// One speculator, or a chain of several, over all prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeculatorVerdict {
    /// Name of the speculator; for a chain, all names in the order they are tried, separated by commas.
    pub name: String,
    /// Number of prompts decoded.
    pub n_prompts: u64,
    /// Number of prompts whose tokens and logits are identical to those of plain decoding.
    pub n_identical: u64,
    /// Sum of the counters of all prompts; `by_speculator` has the members of a chain. Times come from a
    /// single run; `speed` has times for comparison.
    pub counters: Counters,
    /// Tokens per second with drafts divided by those without, at the same number of sequences: the median
    /// of `speed`, 1 for a speculator that drafted nothing; null if no speed was measured.
    pub speedup: Option<f64>,
    /// Speed with drafts and without, measured alternately; null if no speed was measured or
    /// nothing was drafted.
    #[serde(default)]
    pub speed: Option<SpeedComparison>,
    /// Required acceptance rate; null for a speculator without a floor, and for a chain.
    pub floor: Option<Floor>,
    /// True if the acceptance rate reached the floor; null without a floor.
    pub floor_held: Option<bool>,
    /// Error or panic that kept the speculator from decoding all prompts; null if there was none.
    #[serde(default)]
    pub error: Option<String>,
    /// Pass if all prompts are identical, the floor held and enough tokens were drafted; not-exercised
    /// if it would pass but drafted no token.
    pub verdict: Outcome,
}

/// Acceptance rate that a speculator must reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// Smallest acceptance rate that passes, from 0 to 1.
    pub acceptance: f64,
    /// Draft tokens over which acceptance is measured.
    pub over: FloorMeasure,
    /// Measured acceptance rate; null if nothing was drafted, which fails.
    pub measured: Option<f64>,
}

/// Draft tokens over which the acceptance of a floor is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FloorMeasure {
    /// All draft tokens: `--min-accept`.
    AllDrafts,
    /// The first token of each draft: the default floor, which does not depend on the draft length.
    FirstDraftPosition,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailedCheck {
    /// Check that failed.
    pub check: Check,
    /// Name of the speculator; null for a check of the files or of the target alone.
    pub speculator: Option<String>,
    /// The prompt's `id`; null for a check over all prompts.
    pub prompt_id: Option<String>,
    /// One sentence with what was found and what was expected.
    pub message: String,
    /// The value in the earlier report; null without `--baseline`.
    #[serde(default)]
    pub baseline: Option<f64>,
    /// The measured value; null if the check measures none.
    #[serde(default)]
    pub found: Option<f64>,
    /// Worst value that passes; null if the check measures none.
    #[serde(default)]
    pub limit: Option<f64>,
    /// Preflight findings that may explain the failure.
    pub likely_causes: Vec<String>,
}

/// Checks of `verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// The keys and tensor values in the files are consistent with a working model.
    Fit,
    /// Tokens equal to plain decoding's.
    Tokens,
    /// Logits equal to plain decoding's, bit for bit.
    Logits,
    /// Acceptance rate at or above the floor.
    Acceptance,
    /// The target decodes without drafts, and its logits are finite.
    Target,
    /// The speculator runs without an error or a panic.
    Speculator,
    /// The speculator drafted at least the required number of tokens.
    Drafted,
    /// No measure is worse than in an earlier report by more than its tolerance.
    Baseline,
    /// Speedup at or above the required one.
    Speedup,
    /// Logits do not depend on batch size, batch composition or thread count.
    Invariance,
    /// Drafts can be compared with the target's choices, and the target chooses the tokens of its own texts again.
    Agreement,
}

/// Result of the preflight check of the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitReport {
    /// Tensors whose values were read.
    pub n_tensors: u64,
    /// Findings, certain ones first.
    pub findings: Vec<FitFinding>,
    /// Fail if any finding is certain.
    pub verdict: Verdict,
}

/// Property of a file that working models never or rarely have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitFinding {
    /// Path of the file.
    pub file: String,
    /// Tensor, key or other part of the file that the finding is about.
    pub subject: String,
    /// Likely kind of damage.
    pub cause: FitCause,
    /// Certainty of the finding.
    pub severity: Severity,
    /// One sentence with what was found and what was expected.
    pub message: String,
}

/// Certainty of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No working model has this property.
    Certain,
    /// Few working models have this property; the measured checks decide.
    Odd,
}

/// Kinds of damage that the preflight check distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FitCause {
    /// The MTP head is not stored where the keys declare it.
    Layout,
    /// Keys of a draft contradict those of its target.
    Keys,
    /// Packed quantized data is declared as a float type.
    Packed,
    /// NaN or infinity.
    NotFinite,
    /// All values are zero.
    Zero,
    /// All values are equal.
    Constant,
    /// Some rows are all zeros.
    LostRows,
    /// A scale is missing or was applied twice.
    Scale,
    /// The +1 offset of norm weights is missing or was applied twice.
    NormOffset,
    /// One part of a projection is zero or too small to have an effect.
    DeadPart,
    /// Values look like random initialization before training.
    Untrained,
    /// The draft-to-target map of a reduced output head is wrong.
    DraftVocab,
    /// Special tokens differ from those of the target.
    Tokens,
}

/// One speculator with one set of decoding settings, compared with plain decoding at these settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MatrixCell {
    /// Name of the speculator; for a chain, all names in order, separated by commas.
    pub speculator: String,
    /// Decoding settings.
    pub shape: WayShape,
    /// Number of prompts decoded.
    pub n_prompts: u64,
    /// Number of prompts whose tokens and logits are identical to those of plain decoding.
    pub n_identical: u64,
    /// Number of generated tokens.
    pub n_tokens: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub acceptance: Option<f64>,
}

/// Decoding settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WayShape {
    /// Maximum draft length in tokens.
    pub n_draft_max: u32,
    /// Sequences decoded at once.
    pub n_parallel: u32,
    /// Sampling temperature; 0 always takes the most likely token.
    pub temperature: f64,
    /// Random seed of sampling.
    pub seed: u64,
}
