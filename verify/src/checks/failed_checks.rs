//! Messages of failed checks.

use runner::model_files::Files;
use runner::speculate::{DraftKind, SpecType};
use schemas::report::{
    AgreementReport, AgreementTexts, Check, Difference, FailedCheck, FitFinding, FitReport, Floor,
    FloorMeasure, InvarianceReport, MatrixCell, Measure, MeasureKind, Rollback, Severity,
    SpeculatorVerdict, SpeedChange, Spread, SurfaceCell, TargetScores, VerifyRun,
};

use crate::error::Error;
use crate::scores::NotFinite;

use super::verdicts::is_held;

/// Returns all findings about the files.
pub(super) fn all_causes(fit: Option<&FitReport>) -> Vec<String> {
    let findings = fit.iter().flat_map(|fit| &fit.findings);
    findings.map(shown).collect()
}

/// Returns a failed check without speculator, prompt and values.
fn failed(check: Check, message: String) -> FailedCheck {
    FailedCheck {
        check,
        speculator: None,
        prompt_id: None,
        message,
        baseline: None,
        found: None,
        limit: None,
        likely_causes: Vec::new(),
    }
}

pub(super) fn failed_measure(measure: &Measure, likely_causes: Vec<String>) -> FailedCheck {
    let Measure {
        kind,
        draft_position,
        baseline,
        found,
        limit,
        ..
    } = measure;
    let place = draft_position.map_or(String::new(), |i| format!(" at draft position {i}"));
    let (what, bound) = match kind {
        MeasureKind::MeanKl => ("mean KL divergence from the baseline's target", "at most"),
        MeasureKind::TopAgreement => (
            "agreement with the baseline's most likely token",
            "at least",
        ),
        MeasureKind::SameText => ("share of prompts with the baseline's text", "at least"),
        MeasureKind::Perplexity => ("perplexity of the prompts", "at most"),
        MeasureKind::Acceptance => ("acceptance", "at least"),
        MeasureKind::TokensPerS => ("tokens per second", "at least"),
    };
    let message =
        format!("{what}{place} is {found:.3}, expected {bound} {limit:.3}; it was {baseline:.3}");
    FailedCheck {
        speculator: measure.speculator.clone(),
        baseline: Some(*baseline),
        found: Some(*found),
        limit: Some(*limit),
        likely_causes,
        ..failed(Check::Baseline, message)
    }
}

/// Returns the findings about the files of a speculator and its target.
pub(super) fn likely_causes(
    files: &Files,
    kind: SpecType,
    fit: Option<&FitReport>,
) -> Result<Vec<String>, Error> {
    let draft = files.draft_file(kind)?.map(|draft| &draft.file.path);
    let paths = [Some(&files.model.path), draft].into_iter().flatten();
    let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    let findings = fit.iter().flat_map(|fit| &fit.findings);
    let findings = findings.filter(|finding| paths.contains(&finding.file));
    Ok(findings.map(shown).collect())
}

/// Formats a finding as one line.
fn shown(finding: &FitFinding) -> String {
    let FitFinding {
        file,
        subject,
        message,
        ..
    } = finding;
    format!("{file}: {subject}: {message}")
}

pub(super) fn failed_fit(finding: &FitFinding) -> Option<FailedCheck> {
    (finding.severity == Severity::Certain).then(|| failed(Check::Fit, shown(finding)))
}

/// A run that ended with an error or a panic.
pub(super) fn failed_run(check: Check, speculator: Option<&str>, why: &str) -> FailedCheck {
    FailedCheck {
        speculator: speculator.map(str::to_owned),
        ..failed(check, format!("decoding failed: {why}"))
    }
}

/// The target cannot decode without drafts.
pub(super) fn failed_target(why: &str) -> FailedCheck {
    let failed = failed_run(Check::Target, None, why);
    FailedCheck {
        message: format!("without drafts, {}", failed.message),
        ..failed
    }
}

/// Logits of the target that are NaN or infinite.
pub(super) fn failed_scores(scores: &TargetScores, first: &NotFinite) -> FailedCheck {
    let message = format!(
        "{} of {} rows of logits are not finite, expected 0; first position {}: logit of token {} is {}",
        scores.n_not_finite, scores.n_rows, first.position, first.token, first.logit
    );
    FailedCheck {
        prompt_id: Some(first.prompt_id.clone()),
        found: Some(scores.n_not_finite as f64),
        limit: Some(0.0),
        ..failed(Check::Target, message)
    }
}

/// A speculator that was disabled; its drafts up to then are judged as well.
pub(super) fn disabled(setting: &str, kind: SpecType, why: &str) -> FailedCheck {
    let message = format!("{} was disabled because it failed: {why}", kind.name());
    FailedCheck {
        speculator: Some(setting.to_owned()),
        ..failed(Check::Speculator, message)
    }
}

/// A setting that drafted fewer tokens than required.
pub(super) fn failed_drafted(verdict: &SpeculatorVerdict, min: u64) -> Option<FailedCheck> {
    let found = verdict.counters.n_drafted;
    let message = format!(
        "drafted {found} tokens on {} prompts, expected at least {min}: use prompts that it can draft \
         for, or more tokens each",
        verdict.n_prompts
    );
    (found < min).then(|| FailedCheck {
        speculator: Some(verdict.name.clone()),
        found: Some(found as f64),
        limit: Some(min as f64),
        ..failed(Check::Drafted, message)
    })
}

pub(super) fn failed_identity(run: &VerifyRun) -> Option<FailedCheck> {
    let difference = run.first_difference.as_ref()?;
    let check = if run.tokens_identical {
        Check::Logits
    } else {
        Check::Tokens
    };
    let show = |side: &Difference| {
        let text = side.text.as_deref().unwrap_or_default();
        match (side.token, side.logit, side.runner_up) {
            (Some(token), Some(logit), Some(next)) => format!(
                "token {token} {text:?} (logit {logit}, {} above token {})",
                logit - next.logit,
                next.id
            ),
            (Some(token), ..) => format!("token {token} {text:?}"),
            _ => "the end of the text".to_owned(),
        }
    };
    let rule = match difference.rollback {
        Some(Rollback::Truncation) => "; rejected tokens were removed from the KV cache",
        Some(Rollback::States) => "; rejected tokens were rolled back to a kept state",
        Some(Rollback::Checkpoint) => {
            "; rejected tokens were rolled back to a kept state, or rerun after a checkpoint"
        }
        None => "",
    };
    let message = format!(
        "position {}: plain decoding has {}, {} has {}{rule}",
        difference.position,
        show(&difference.plain),
        run.speculator,
        show(&difference.speculative),
    );
    Some(FailedCheck {
        speculator: Some(run.speculator.clone()),
        prompt_id: Some(run.prompt_id.clone()),
        ..failed(check, message)
    })
}

/// A speculator below its floor.
pub(super) fn failed_floor(
    name: &str,
    floor: Option<&Floor>,
    likely_causes: Vec<String>,
) -> Option<FailedCheck> {
    let floor = floor.filter(|floor| !is_held(floor))?;
    let place = match floor.over {
        FloorMeasure::AllDrafts => "acceptance over all drafted tokens",
        FloorMeasure::FirstDraftPosition => "acceptance at the first draft position",
    };
    let found = match floor.measured {
        Some(found) => format!("is {found:.3}"),
        None => "is unknown, as nothing was drafted".to_owned(),
    };
    let kind = SpecType::by_name(name).ok();
    let model = kind.and_then(|kind| kind.spec().model.as_ref());
    let is_head = model.is_some_and(|model| model.kind == DraftKind::Mtp);
    let cause = match (floor.over, floor.measured) {
        (FloorMeasure::FirstDraftPosition, Some(_)) if is_head => {
            "; the head does not belong to this trunk, or was converted or grafted wrongly"
        }
        (FloorMeasure::FirstDraftPosition, Some(_)) => {
            "; the draft does not belong to this target, or was converted wrongly"
        }
        _ => "",
    };
    let limit = floor.acceptance;
    let message = format!("{place} {found}, expected at least {limit:.3}{cause}");
    Some(FailedCheck {
        speculator: Some(name.to_owned()),
        found: floor.measured,
        limit: Some(limit),
        likely_causes,
        ..failed(Check::Acceptance, message)
    })
}

/// A target that chooses other tokens when it reads a text of its own.
pub(super) fn failed_choices(report: &AgreementReport) -> Option<FailedCheck> {
    let n = report.n_other_choices;
    let is_own = report.texts == AgreementTexts::Own;
    (is_own && n > 0).then(|| FailedCheck {
        found: Some(n as f64),
        limit: Some(0.0),
        ..failed(
            Check::Agreement,
            format!(
                "at {n} of {} positions, the target chooses another token when it reads its own text in wide passes",
                report.n_positions
            ),
        )
    })
}

/// A cell of the acceptance surface with another text than without drafts.
pub(super) fn failed_surface(cell: &SurfaceCell) -> Option<FailedCheck> {
    let n_other = cell.n_texts - cell.n_identical;
    (cell.task.is_none() && n_other > 0).then(|| FailedCheck {
        speculator: Some(cell.speculator.clone()),
        ..failed(
            Check::Tokens,
            format!(
                "context of {} tokens, temperature {}: {n_other} of {} texts differ from those without drafts",
                cell.n_context, cell.temperature, cell.n_texts
            ),
        )
    })
}

/// A required speedup above 1 must be a certain gain.
pub(super) fn failed_speedup(verdict: &SpeculatorVerdict, min: f64) -> Option<FailedCheck> {
    let speed = verdict.speed.as_ref();
    let is_gain = speed.is_some_and(|speed| speed.change == SpeedChange::Faster);
    let found = verdict.speedup;
    if found.is_some_and(|found| found >= min) && (min <= 1.0 || is_gain) {
        return None;
    }
    let runs = match (speed, verdict.counters.n_drafted) {
        (_, 0) => " as nothing was drafted".to_owned(),
        (None, _) => String::new(),
        (Some(speed), _) => {
            let Spread { min, max, .. } = speed.ratio;
            let n = speed.n_runs;
            let note = match is_gain {
                true => "",
                false => ", whose mean may be 1 or less",
            };
            format!(" (median of {n} runs from {min:.3} to {max:.3}{note})")
        }
    };
    let shown = found.map_or("unknown".to_owned(), |found| format!("{found:.3}"));
    let message = format!(
        "speedup over decoding without drafts is {shown}{runs}, expected at least {min:.3}"
    );
    Some(FailedCheck {
        speculator: Some(verdict.name.clone()),
        found,
        limit: Some(min),
        ..failed(Check::Speedup, message)
    })
}

/// A failed check of another decoding configuration.
pub(super) fn failed_cell(cell: &MatrixCell, failed: FailedCheck) -> FailedCheck {
    let shape = &cell.shape;
    FailedCheck {
        message: format!(
            "draft length {}, concurrency {}, temperature {}: {}",
            shape.n_draft_max, shape.n_parallel, shape.temperature, failed.message
        ),
        ..failed
    }
}

pub(super) fn failed_invariance(report: &InvarianceReport) -> Option<FailedCheck> {
    let first = report.differences.first()?;
    let message = format!(
        "{} of {} rows of logits depend on the batch or the number of threads; first position {}: {} \
         alone, {} in a pass (tokens {}, sequences {}, threads {})",
        report.n_different,
        report.n_rows,
        first.position,
        first.alone,
        first.found,
        first.n_tokens,
        first.n_sequences,
        first.n_threads
    );
    Some(FailedCheck {
        prompt_id: Some(first.prompt_id.clone()),
        found: Some(report.n_different as f64),
        limit: Some(0.0),
        ..failed(Check::Invariance, message)
    })
}
