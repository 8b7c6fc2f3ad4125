//! What a failed check says.

use schemas::report::{
    Check, Difference, FailedCheck, FitFinding, FitReport, FloorMeasure, InvarianceReport,
    MatrixCell, Measure, MeasureKind, Rollback, Severity, SpeculatorVerdict, VerifyRun,
};

use crate::error::Error;
use crate::load::Files;
use crate::speculate::{Failure, SpecType};

/// Everything that is odd about the files.
pub(super) fn all_causes(fit: Option<&FitReport>) -> Vec<String> {
    let findings = fit.iter().flat_map(|fit| &fit.findings);
    findings.map(shown).collect()
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
        MeasureKind::TopAgreement => ("agreement with the baseline's likeliest token", "at least"),
        MeasureKind::SameText => ("share of prompts with the baseline's text", "at least"),
        MeasureKind::Perplexity => ("perplexity of the prompts", "at most"),
        MeasureKind::Acceptance => ("acceptance", "at least"),
        MeasureKind::TokensPerS => ("tokens a second", "at least"),
    };
    FailedCheck {
        check: Check::Baseline,
        speculator: measure.speculator.clone(),
        prompt_id: None,
        message: format!(
            "{what}{place} is {found:.3}, expected {bound} {limit:.3}; it was {baseline:.3}"
        ),
        likely_causes,
    }
}

/// What is odd about the files that a speculator drafts with, or for.
pub(super) fn likely_causes(
    files: &Files,
    kind: SpecType,
    fit: Option<&FitReport>,
) -> Result<Vec<String>, Error> {
    let draft = files.draft_file(kind)?.map(|file| &file.path);
    let paths = [Some(&files.model.path), draft].into_iter().flatten();
    let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    let findings = fit.iter().flat_map(|fit| &fit.findings);
    let findings = findings.filter(|finding| paths.contains(&finding.file));
    Ok(findings.map(shown).collect())
}

/// A finding in one line.
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
    (finding.severity == Severity::Certain).then(|| FailedCheck {
        check: Check::Fit,
        speculator: None,
        prompt_id: None,
        message: shown(finding),
        likely_causes: Vec::new(),
    })
}

/// A speculator that was switched off; what it drafted until then is judged as well.
pub(super) fn failed_speculator(failure: &Failure) -> FailedCheck {
    FailedCheck {
        check: Check::Speculator,
        speculator: Some(failure.kind.name().to_owned()),
        prompt_id: None,
        message: format!("switched off, as it failed: {}", failure.error),
        likely_causes: Vec::new(),
    }
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
        Some(Rollback::Truncation) => "; rejected drafts were cut off the keys and values",
        Some(Rollback::States) => "; rejected drafts were taken back to a kept state",
        Some(Rollback::Checkpoint) => {
            "; rejected drafts were taken back to a kept state, or run again behind a checkpoint"
        }
        None => "",
    };
    Some(FailedCheck {
        check,
        speculator: Some(run.speculator.clone()),
        prompt_id: Some(run.prompt_id.clone()),
        message: format!(
            "position {}: plain decoding has {}, {} has {}{rule}",
            difference.position,
            show(&difference.plain),
            run.speculator,
            show(&difference.speculative),
        ),
        likely_causes: Vec::new(),
    })
}

pub(super) fn failed_floor(
    verdict: &SpeculatorVerdict,
    likely_causes: Vec<String>,
) -> Option<FailedCheck> {
    let floor = verdict.floor.as_ref().filter(|_| !verdict.floor_held)?;
    let place = match floor.over {
        FloorMeasure::AllDrafts => "acceptance over all drafted tokens",
        FloorMeasure::FirstDraftPosition => "acceptance at the first draft position",
    };
    let found = match floor.measured {
        Some(found) => format!("is {found:.3}"),
        None => "is unknown, as nothing was drafted".to_owned(),
    };
    let is_head = verdict.name == SpecType::DraftMtp.name();
    let dead = match (floor.over, floor.measured) {
        (FloorMeasure::FirstDraftPosition, Some(_)) if is_head => {
            "; the head is dead: it does not belong to this trunk, or was converted or grafted \
             wrongly"
        }
        (FloorMeasure::FirstDraftPosition, Some(_)) => {
            "; the draft is dead: it does not belong to this target, or was converted wrongly"
        }
        _ => "",
    };
    Some(FailedCheck {
        check: Check::Acceptance,
        speculator: Some(verdict.name.clone()),
        prompt_id: None,
        message: format!(
            "{place} {found}, expected at least {:.3}{dead}",
            floor.acceptance
        ),
        likely_causes,
    })
}

pub(super) fn failed_speedup(verdict: &SpeculatorVerdict, min: f64) -> Option<FailedCheck> {
    let found = verdict.speedup;
    if found.is_some_and(|found| found >= min) {
        return None;
    }
    let found = found.map_or("unknown".to_owned(), |found| format!("{found:.3}"));
    Some(FailedCheck {
        check: Check::Speedup,
        speculator: Some(verdict.name.clone()),
        prompt_id: None,
        message: format!(
            "tokens a second over those without drafts: {found}, expected at least {min:.3}"
        ),
        likely_causes: Vec::new(),
    })
}

/// A prompt that another way of decoding changes.
pub(super) fn failed_cell(cell: &MatrixCell, run: &VerifyRun) -> Option<FailedCheck> {
    let failed = failed_identity(run)?;
    let shape = &cell.shape;
    Some(FailedCheck {
        message: format!(
            "drafts of {}, {} sequence(s) at once, temperature {}: {}",
            shape.n_draft_max, shape.n_parallel, shape.temperature, failed.message
        ),
        ..failed
    })
}

pub(super) fn failed_invariance(report: &InvarianceReport) -> Option<FailedCheck> {
    let first = report.differences.first()?;
    Some(FailedCheck {
        check: Check::Invariance,
        speculator: None,
        prompt_id: Some(first.prompt_id.clone()),
        message: format!(
            "{} of {} rows of logits depend on how they were computed; first position {}: {} alone, \
             {} in a pass of {} tokens of {} sequence(s) on {} thread(s)",
            report.n_different,
            report.n_rows,
            first.position,
            first.alone,
            first.found,
            first.n_tokens,
            first.n_sequences,
            first.n_threads
        ),
        likely_causes: Vec::new(),
    })
}
