//! Result of `specrun verify`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    BaselineReport, Counters, InvarianceReport, Outcome, Provenance, Rollback, SpeedComparison,
    TargetScores, TokenLogit, Verdict, WidthCost,
};

/// Whether speculation changes nothing but the speed, and whether it drafts well enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "verify")]
pub struct VerifyReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, machine and inputs; null in reports of older versions.
    #[serde(default)]
    pub provenance: Option<Provenance>,
    /// The target's file.
    pub model: String,
    /// The files that draft, separated by commas; null without any.
    pub draft: Option<String>,
    /// Where it ran, with the instruction set or device.
    pub backend: String,
    /// Threads.
    pub n_threads: u32,
    /// Longest draft, `--spec-draft-n-max`.
    pub n_draft_max: u32,
    /// Sequences decoded at once.
    pub n_parallel: u32,
    /// Which draft of a chain is verified: `first` or `best`; null in reports of older versions.
    #[serde(default)]
    pub policy: Option<String>,
    /// What the files say before anything runs; null where that was not asked for.
    pub fit: Option<FitReport>,
    /// Every prompt under every speculator, prompts in file order; empty if the preflight failed or
    /// nothing drafts.
    pub runs: Vec<VerifyRun>,
    /// Totals of each speculator alone, then of all of them as one chain if there are several; empty
    /// where only the target is verified.
    pub speculators: Vec<SpeculatorVerdict>,
    /// What passes over 1, 2, .. tokens cost, as far as drafts reach; empty where nothing was decoded.
    #[serde(default)]
    pub widths: Vec<WidthCost>,
    /// Other ways to decode the same prompts; empty without `--matrix`.
    pub matrix: Vec<MatrixCell>,
    /// Whether logits depend on anything but the text; null where that was not asked for.
    pub invariance: Option<InvarianceReport>,
    /// What the target makes of the prompts, for later reports to be measured against; null where
    /// nothing was decoded.
    pub target: Option<TargetScores>,
    /// This report against an earlier one; null without `--baseline`.
    pub baseline: Option<BaselineReport>,
    /// Checks that ran and failed; empty if all hold.
    pub failed: Vec<FailedCheck>,
    /// Pass if no check failed.
    pub verdict: Verdict,
}

/// One prompt under one speculator, against the same prompt decoded with zero drafts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRun {
    /// The prompt's `id`.
    pub prompt_id: String,
    /// The prompt's `kind`; null where it has none.
    pub prompt_kind: Option<String>,
    /// Tokens of the prompt.
    pub n_prompt_tokens: u64,
    /// The speculator's name; of a chain all names in order, separated by commas.
    pub speculator: String,
    /// Whether all tokens equal those of plain decoding.
    pub tokens_identical: bool,
    /// Whether the logits of every committed position equal those of plain decoding, bit for bit.
    pub logits_identical: bool,
    /// Where they first differ; null where nothing does.
    pub first_difference: Option<FirstDifference>,
    /// What speculative decoding counted.
    pub counters: Counters,
    /// Hash of the last committed row of logits, in hexadecimal.
    pub last_logits_hash: String,
}

/// The first position at which speculation departs from plain decoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirstDifference {
    /// Position in the sequence, the prompt included, from 0.
    pub position: u64,
    /// Plain decoding.
    pub plain: Difference,
    /// Speculative decoding.
    pub speculative: Difference,
    /// How the target's caches went back to where a draft was right.
    #[serde(default)]
    pub rollback: Option<Rollback>,
}

/// One side of a difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Token id; null if this side had ended.
    pub token: Option<u32>,
    /// Its text.
    #[serde(default)]
    pub text: Option<String>,
    /// Hash of the row of logits that chose it; null if this side had ended.
    pub logits_hash: Option<String>,
    /// The token's logit there; null if this side had ended.
    pub logit: Option<f32>,
    /// The best of all other tokens there, and its logit: the margin is what lies between.
    pub runner_up: Option<TokenLogit>,
}

/// One speculator, or a chain of several, over all prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeculatorVerdict {
    /// Its name; of a chain all names in the order in which they are asked, separated by commas.
    pub name: String,
    /// Prompts it ran on.
    pub n_prompts: u64,
    /// Prompts whose tokens and logits are identical to plain decoding's.
    pub n_identical: u64,
    /// What all its runs counted together; `by_speculator` has the members of a chain. Its times are
    /// those of one run, see `speed` for times to compare.
    pub counters: Counters,
    /// Tokens a second over those without drafts, at the same number of sequences: the median of
    /// `speed`, 1 for a speculator that drafted nothing; null where no speed was measured.
    pub speedup: Option<f64>,
    /// Speed with drafts and without, measured alternately; null where no speed was measured or
    /// nothing was drafted.
    #[serde(default)]
    pub speed: Option<SpeedComparison>,
    /// Acceptance it must reach; null for a speculator without a floor, and for a chain.
    pub floor: Option<Floor>,
    /// Whether it reached the floor; null without one.
    pub floor_held: Option<bool>,
    /// Why it could not decode all prompts, an error or a panic; null if it could.
    #[serde(default)]
    pub error: Option<String>,
    /// Pass if all prompts are identical, the floor held and enough tokens were drafted; not-exercised
    /// if it would pass but drafted no token.
    pub verdict: Outcome,
}

/// Acceptance that a speculator must reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// Smallest that passes.
    pub acceptance: f64,
    /// Which draft tokens count.
    pub over: FloorMeasure,
    /// What was found; null if nothing was drafted, which fails.
    pub measured: Option<f64>,
}

/// Which draft tokens count for a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FloorMeasure {
    /// All of them: `--min-accept`.
    AllDrafts,
    /// The first of each draft: the default floor, which does not depend on the draft's length.
    FirstDraftPosition,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailedCheck {
    /// What was checked.
    pub check: Check,
    /// The speculator; null for a check of the files or of the target alone.
    pub speculator: Option<String>,
    /// The prompt's `id`; null for a check over all prompts.
    pub prompt_id: Option<String>,
    /// One sentence with what was found and what was expected.
    pub message: String,
    /// What was odd about the files before they ran, where that may be why.
    pub likely_causes: Vec<String>,
}

/// What `verify` checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// The files' keys and values are those of a model that can work.
    Fit,
    /// Tokens equal to plain decoding's.
    Tokens,
    /// Logits equal to plain decoding's, bit for bit.
    Logits,
    /// Acceptance at or above the floor.
    Acceptance,
    /// The target decodes without drafts, and its logits are finite.
    Target,
    /// The speculator runs without an error or a panic.
    Speculator,
    /// The speculator drafted as many tokens as were asked for.
    Drafted,
    /// Nothing is worse than in an earlier report, beyond its tolerance.
    Baseline,
    /// Drafts make it as much faster as was asked for.
    Speedup,
    /// Logits do not depend on how they are computed.
    Invariance,
}

/// What a look at the files told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitReport {
    /// Tensors whose values were read.
    pub n_tensors: u64,
    /// What was found, the certain first.
    pub findings: Vec<FitFinding>,
    /// Fail if anything is certain.
    pub verdict: Verdict,
}

/// Something about a file that no working model has, or few.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitFinding {
    /// The file.
    pub file: String,
    /// The tensor, the key, or what else it is about.
    pub subject: String,
    /// What kind of damage it looks like.
    pub cause: FitCause,
    /// How sure that is.
    pub severity: Severity,
    /// What was found, and what it should be.
    pub message: String,
}

/// How sure a finding is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No working model is so.
    Certain,
    /// Few are; the measured checks decide.
    Odd,
}

/// Kinds of damage that a look at the files tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FitCause {
    /// The MTP head lies elsewhere than the keys say.
    Layout,
    /// Keys of a draft contradict those of its target.
    Keys,
    /// Packed numbers read as floats.
    Packed,
    /// NaN or infinity.
    NotFinite,
    /// Nothing but zeros.
    Zero,
    /// One value everywhere.
    Constant,
    /// Rows of zeros among others.
    LostRows,
    /// A scale that is missing, or applied twice.
    Scale,
    /// A norm that lacks the family's one, or has it twice.
    NormOffset,
    /// One part of a projection is zero or as good as unheard.
    DeadPart,
    /// As random as before training.
    Untrained,
    /// The map of a reduced output head.
    DraftVocab,
    /// Special tokens that are not the target's.
    Tokens,
}

/// One way to decode the prompts under one speculator, against the same without drafts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MatrixCell {
    /// The speculator's name; of a chain all names in order, separated by commas.
    pub speculator: String,
    /// The way.
    pub shape: WayShape,
    /// Prompts it ran on.
    pub n_prompts: u64,
    /// Prompts whose tokens and logits are identical to plain decoding's.
    pub n_identical: u64,
    /// Tokens written.
    pub n_tokens: u64,
    /// Accepted over drafted; null if nothing was drafted.
    pub acceptance: Option<f64>,
}

/// A way to decode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WayShape {
    /// Longest draft.
    pub n_draft_max: u32,
    /// Sequences at once.
    pub n_parallel: u32,
    /// Temperature; 0 takes the likeliest token.
    pub temperature: f64,
    /// Which of the possible texts is drawn.
    pub seed: u64,
}
