//! Comparison of a speculator's texts with those of plain decoding.

use runner::speculate::{Completion, Request, SpecType};
use runner::tokenizer::{ControlText, Tokenizer};
use schemas::report::{
    Counters, Difference, FirstDifference, Floor, FloorMeasure, Outcome, Rollback,
    SpeculatorVerdict, SpeedComparison, TokenLogit, VerifyRun,
};

use crate::prompts::Prompt;
use crate::report;

use super::prompt_decoder::Decoded;
use super::setting::Setting;
use super::{Stage, VerifyConfig};

/// Context needed to describe a difference.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    /// The kind of rollback of the target's caches.
    pub(super) rollback: Rollback,
}

/// Compares one prompt under one speculator with plain decoding.
pub(super) fn compare(
    shown: Shown<'_>,
    prompt: &Prompt,
    request: &Request,
    speculator: &str,
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
        speculator: speculator.to_owned(),
        tokens_identical: plain.tokens == drafted.tokens,
        logits_identical: plain.hashes == drafted.hashes,
        first_difference,
        counters: report::counters(&drafted.tally),
        last_logits_hash: drafted
            .hashes
            .last()
            .map(ToString::to_string)
            .unwrap_or_default(),
    }
}

/// Judges one setting over all prompts. `speed` is `None` if no speed was measured, and
/// `Some(None)` if there was nothing to compare.
pub(super) fn judge(
    setting: &Setting,
    runs: &[VerifyRun],
    drafted: &Decoded,
    speed: Option<&Option<SpeedComparison>>,
    config: &VerifyConfig,
) -> SpeculatorVerdict {
    let total = &drafted.total;
    let n_drafted = total.n_drafted();
    let floor = floor_of(setting, drafted, config);
    let floor_held = floor.as_ref().map(is_held);
    let identical = |run: &&VerifyRun| run.tokens_identical && run.logits_identical;
    let n_identical = runs.iter().filter(identical).count();
    let pass = floor_held != Some(false)
        && (n_identical == runs.len() || !config.is_asked(Stage::Identity))
        && drafted.disabled.is_empty()
        && n_drafted >= config.min_drafted;
    let speed = speed.cloned().flatten();
    SpeculatorVerdict {
        name: setting.name(),
        n_prompts: runs.len() as u64,
        n_identical: n_identical as u64,
        counters: report::counters(total),
        speedup: match n_drafted {
            0 => Some(1.0),
            _ => speed.as_ref().map(|speed| speed.ratio.median),
        },
        speed,
        floor,
        floor_held,
        error: None,
        verdict: match (pass, n_drafted) {
            (false, _) => Outcome::Fail,
            (true, 0) => Outcome::NotExercised,
            (true, _) => Outcome::Pass,
        },
    }
}

/// Returns the floor of a setting; the members of a chain are judged where they run alone.
fn floor_of(setting: &Setting, drafted: &Decoded, config: &VerifyConfig) -> Option<Floor> {
    let kind = setting.kind()?;
    let total = &drafted.total;
    let is_asked = config.is_asked(Stage::Acceptance);
    is_asked
        .then(|| floor(config, kind, total.acceptance(), total.acceptance_at(0)))
        .flatten()
}

/// Returns the floor of a speculator, with its acceptance over all drafted tokens and at the first draft position.
pub(super) fn floor(
    config: &VerifyConfig,
    kind: SpecType,
    over_all: Option<f64>,
    first: Option<f64>,
) -> Option<Floor> {
    match config.min_accept {
        Some(acceptance) => Some(Floor {
            acceptance,
            over: FloorMeasure::AllDrafts,
            measured: over_all,
        }),
        None => kind.spec().acceptance_floor.map(|acceptance| Floor {
            acceptance,
            over: FloorMeasure::FirstDraftPosition,
            measured: first,
        }),
    }
}

/// True if a measured rate reached its floor; a drafter that never drafted has no rate and did not.
pub(super) fn is_held(floor: &Floor) -> bool {
    floor
        .measured
        .is_some_and(|found| found >= floor.acceptance)
}

/// A setting that could not decode all prompts.
pub(super) fn broken(name: String, n_prompts: usize, why: &str) -> SpeculatorVerdict {
    SpeculatorVerdict {
        name,
        n_prompts: n_prompts as u64,
        n_identical: 0,
        counters: Counters::default(),
        speedup: None,
        speed: None,
        floor: None,
        floor_held: None,
        error: Some(why.to_owned()),
        verdict: Outcome::Fail,
    }
}
