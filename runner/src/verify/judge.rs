//! What the texts of a speculator are beside those without drafts.

use schemas::report::{
    Difference, FirstDifference, Floor, FloorMeasure, Rollback, SpeculatorVerdict, TokenLogit,
    Verdict, VerifyRun,
};

use crate::metrics::Tally;
use crate::prompts::Prompt;
use crate::speculate::{Completion, Request, SpecType};
use crate::tokenizer::{ControlText, Tokenizer};

use super::{Stage, VerifyConfig, floor};

/// What a difference is shown with.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    /// How the target's caches went back.
    pub(super) rollback: Rollback,
}

/// One prompt under one speculator against plain decoding.
pub(super) fn compare(
    shown: Shown<'_>,
    prompt: &Prompt,
    request: &Request,
    kind: SpecType,
    plain: &Completion,
    drafted: &Completion,
) -> VerifyRun {
    let side = |completion: &Completion, i: usize| {
        let choice = completion.choices.get(i);
        let runner_up = choice.and_then(|choice| choice.runner_up);
        let token = completion.tokens.get(i).copied();
        Difference {
            text: token.map(|token| shown.tokenizer.decode(&[token], ControlText::Show)),
            token,
            logits_hash: completion.hashes.get(i).map(ToString::to_string),
            logit: choice.map(|choice| choice.logit),
            runner_up: runner_up.map(|(id, logit)| TokenLogit { id, logit }),
        }
    };
    let len = plain.tokens.len().max(drafted.tokens.len());
    let differs = |&i: &usize| {
        let same_choice = plain.choices.get(i) == drafted.choices.get(i);
        let same_logits = plain.hashes.get(i) == drafted.hashes.get(i);
        plain.tokens.get(i) != drafted.tokens.get(i) || !same_logits || !same_choice
    };
    let first_difference = (0..len).find(differs).map(|i| FirstDifference {
        position: (request.tokens.len() + i) as u64,
        plain: side(plain, i),
        speculative: side(drafted, i),
        rollback: Some(shown.rollback),
    });
    VerifyRun {
        prompt_id: prompt.id.clone(),
        prompt_kind: prompt.kind.clone(),
        n_prompt_tokens: request.tokens.len() as u64,
        speculator: kind.name().to_owned(),
        tokens_identical: plain.tokens == drafted.tokens,
        logits_identical: plain.hashes == drafted.hashes,
        first_difference,
        counters: drafted.tally.report(),
        last_logits_hash: drafted
            .hashes
            .last()
            .map(ToString::to_string)
            .unwrap_or_default(),
    }
}

/// One speculator over all prompts: what they took without drafts, and with.
pub(super) fn judge(
    kind: SpecType,
    runs: &[VerifyRun],
    totals: [&Tally; 2],
    config: &VerifyConfig,
) -> SpeculatorVerdict {
    let [plain, total] = totals;
    let is_judged = |stage| config.stages.contains(&stage);
    let floor = match config.min_accept {
        _ if !is_judged(Stage::Acceptance) => None,
        Some(acceptance) => Some(Floor {
            acceptance,
            over: FloorMeasure::AllDrafts,
            measured: total.acceptance(),
        }),
        None => floor(kind).map(|acceptance| Floor {
            acceptance,
            over: FloorMeasure::FirstDraftPosition,
            measured: total.acceptance_at(0),
        }),
    };
    // A drafter that never drafted did not reach anything.
    let holds = |floor: &Floor| {
        floor
            .measured
            .is_some_and(|found| found >= floor.acceptance)
    };
    let floor_held = floor.as_ref().is_none_or(holds);
    let identical = |run: &&VerifyRun| run.tokens_identical && run.logits_identical;
    let n_identical = runs.iter().filter(identical).count();
    let pass = floor_held && (n_identical == runs.len() || !is_judged(Stage::Identity));
    SpeculatorVerdict {
        name: kind.name().to_owned(),
        n_prompts: runs.len() as u64,
        n_identical: n_identical as u64,
        counters: total.report(),
        speedup: speedup(plain, total),
        floor,
        floor_held,
        verdict: if pass { Verdict::Pass } else { Verdict::Fail },
    }
}

/// Tokens a second over those without drafts.
fn speedup(plain: &Tally, drafted: &Tally) -> Option<f64> {
    let speed = |tally: &Tally| tally.report().tokens_per_s.filter(|&speed| speed > 0.0);
    Some(speed(drafted)? / speed(plain)?)
}
