//! Result of `specrun verify`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Counters, Verdict};

/// Whether speculation changes nothing but the speed, and whether it drafts well enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "verify")]
pub struct VerifyReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The target's file.
    pub model: String,
    /// The files that draft, separated by commas; null without any.
    pub draft: Option<String>,
    /// Longest draft, `--spec-draft-n-max`.
    pub n_draft_max: u32,
    /// Sequences decoded at once.
    pub n_parallel: u32,
    /// Every prompt under every speculator, prompts in file order.
    pub runs: Vec<VerifyRun>,
    /// Totals of each speculator, against its floor.
    pub speculators: Vec<SpeculatorVerdict>,
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
    /// The speculator's name.
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
}

/// One side of a difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Token id; null if this side had ended.
    pub token: Option<u32>,
    /// Hash of the row of logits that chose it; null if this side had ended.
    pub logits_hash: Option<String>,
}

/// One speculator over all prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeculatorVerdict {
    /// Its name.
    pub name: String,
    /// Prompts it ran on.
    pub n_prompts: u64,
    /// Prompts whose tokens and logits are identical to plain decoding's.
    pub n_identical: u64,
    /// What all its runs counted together.
    pub counters: Counters,
    /// Acceptance it must reach; null for a speculator without a floor.
    pub floor: Option<Floor>,
    /// Whether it reached the floor; true without one.
    pub floor_held: bool,
    /// Pass if all prompts are identical and the floor held.
    pub verdict: Verdict,
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
    /// The speculator.
    pub speculator: String,
    /// The prompt's `id`; null for a check over all prompts.
    pub prompt_id: Option<String>,
    /// One sentence with what was found and what was expected.
    pub message: String,
}

/// What `verify` checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Tokens equal to plain decoding's.
    Tokens,
    /// Logits equal to plain decoding's, bit for bit.
    Logits,
    /// Acceptance at or above the floor.
    Acceptance,
    /// The speculator runs without an error.
    Speculator,
}
