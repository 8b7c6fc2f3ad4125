//! A report as a list of checks that passed or failed, for all formats except JSON and text.

use schemas::report::{
    AgreementReport, Check, FailedCheck, Measure, MeasureKind, Outcome, Severity,
    SpeculatorAgreement, SpeculatorVerdict, VerifyReport, VerifyRun,
};
use serde::Serialize;

use super::surface;
use crate::output::count;
use crate::specrun::page::number;

/// One check.
#[derive(Debug, Serialize)]
pub(super) struct Case {
    /// The stage of the check.
    pub(super) stage: &'static str,
    /// Name of the check, unique within its stage.
    pub(super) name: String,
    /// Short result, a few words.
    pub(super) found: String,
    /// Reason of the failure; `None` if the check passed.
    pub(super) failure: Option<String>,
    /// True if there was nothing to check: the check neither failed nor passed.
    pub(super) skipped: bool,
}

/// Returns the stages in the order of their first check.
pub(super) fn stages(cases: &[Case]) -> Vec<&'static str> {
    let mut stages: Vec<&str> = Vec::new();
    for case in cases {
        if !stages.contains(&case.stage) {
            stages.push(case.stage);
        }
    }
    stages
}

/// Lists the checks of a report, by stage.
pub(super) fn cases(report: &VerifyReport) -> Vec<Case> {
    let mut cases = fit(report);
    cases.extend(target(report));
    cases.extend(report.runs.iter().map(|run| identity(report, run)));
    for speculator in &report.speculators {
        cases.extend(of_speculator(report, speculator));
    }
    cases.extend(
        report
            .agreement
            .iter()
            .flat_map(|found| agreement(report, found)),
    );
    cases.extend(surface::cases(report));
    cases.extend(report.matrix.iter().map(|cell| {
        let shape = &cell.shape;
        let is_same = cell.n_identical == cell.n_prompts;
        let found = format!(
            "{} of {} prompts identical",
            cell.n_identical, cell.n_prompts
        );
        Case {
            stage: "matrix",
            name: format!(
                "{}, drafts of up to {}, {}, temperature {}",
                cell.speculator,
                shape.n_draft_max,
                count(shape.n_parallel.into(), "sequence"),
                shape.temperature
            ),
            failure: (!is_same).then(|| found.clone()),
            skipped: cell.acceptance.is_none() && is_same,
            found,
        }
    }));
    cases.extend(report.invariance.iter().map(|invariance| {
        let found = format!(
            "{} of {} rows differ",
            invariance.n_different, invariance.n_rows
        );
        let failed = report.failed.iter().find(|f| f.check == Check::Invariance);
        Case {
            stage: "invariance",
            name: "logits".to_owned(),
            failure: failed.map(|failed| failed.message.clone()),
            skipped: false,
            found,
        }
    }));
    if let Some(baseline) = &report.baseline {
        for measure in &baseline.measures {
            let values = format!("{:.4}, was {:.4}", measure.found, measure.baseline);
            let limit = format!("limit {:.4}", measure.limit);
            cases.push(Case {
                stage: "baseline",
                name: measure_name(measure),
                failure: (!measure.holds).then(|| format!("{values}, {limit}")),
                skipped: false,
                found: format!("{values}, {limit}"),
            });
        }
    }
    cases
}

fn fit(report: &VerifyReport) -> Vec<Case> {
    let Some(fit) = &report.fit else {
        return Vec::new();
    };
    let certain = fit.findings.iter();
    let certain = certain.filter(|finding| finding.severity == Severity::Certain);
    let failed = certain.map(|finding| Case {
        stage: "fit",
        name: format!("{}: {}", finding.file, finding.subject),
        found: finding.message.clone(),
        failure: Some(finding.message.clone()),
        skipped: false,
    });
    let mut cases: Vec<Case> = failed.collect();
    if cases.is_empty() {
        cases.push(Case {
            stage: "fit",
            name: "files".to_owned(),
            found: format!("{} tensors, {} warnings", fit.n_tensors, fit.findings.len()),
            failure: None,
            skipped: false,
        });
    }
    cases
}

fn identity(report: &VerifyReport, run: &VerifyRun) -> Case {
    let same = |same: bool| if same { "same" } else { "differ" };
    let checks = [Check::Tokens, Check::Logits];
    let (name, id) = (Some(&run.speculator), Some(&run.prompt_id));
    Case {
        stage: "identity",
        name: format!("{}, prompt {}", run.speculator, run.prompt_id),
        found: format!(
            "tokens {}, logits {}, {} tokens",
            same(run.tokens_identical),
            same(run.logits_identical),
            run.counters.n_tokens
        ),
        // Failures of other decoding settings name the same speculator and prompt.
        failure: failure(report, &checks, name, id).filter(|_| run.first_difference.is_some()),
        skipped: run.counters.n_drafted == 0 && run.first_difference.is_none(),
    }
}

/// The drafts at every position of known texts.
fn agreement(report: &VerifyReport, found: &AgreementReport) -> Vec<Case> {
    let checks = [Check::Agreement, Check::Acceptance];
    let case = |s: &SpeculatorAgreement| {
        let first = s.by_draft_position.first();
        let rate = number(first.and_then(|first| first.acceptance), 3);
        let per_pass = number(s.tokens_per_target_pass, 2);
        Case {
            stage: "agreement",
            name: s.name.clone(),
            found: format!(
                "acceptance at position 1 {rate}, {per_pass} tokens per pass, predicted"
            ),
            failure: failure(report, &checks, Some(&s.name), None)
                .filter(|_| s.error.is_some() || s.floor_held == Some(false)),
            skipped: s.error.is_none() && first.is_none(),
        }
    };
    let mut cases: Vec<Case> = found.speculators.iter().map(case).collect();
    cases.push(Case {
        stage: "agreement",
        name: "target".to_owned(),
        found: format!(
            "{} of {} chosen otherwise",
            found.n_other_choices,
            count(found.n_positions, "position")
        ),
        failure: failure(report, &[Check::Agreement], None, None),
        skipped: found.speculators.is_empty(),
    });
    cases
}

/// The check of the target without speculators.
fn target(report: &VerifyReport) -> Option<Case> {
    let failed = report.failed.iter().find(|f| f.check == Check::Target);
    if failed.is_none() && report.target.is_none() {
        return None;
    }
    Some(Case {
        stage: "target",
        name: "logits".to_owned(),
        found: match &report.target {
            Some(target) => format!("{} rows, {} not finite", target.n_rows, target.n_not_finite),
            None => "no text".to_owned(),
        },
        failure: failed.map(message),
        skipped: false,
    })
}

/// Lists the checks of a speculator over all prompts.
fn of_speculator(report: &VerifyReport, speculator: &SpeculatorVerdict) -> Vec<Case> {
    let name = &speculator.name;
    let counters = &speculator.counters;
    let failed = |check| failure(report, &[check], Some(name), None);
    let case = |stage, found: String, failure: Option<String>| Case {
        stage,
        name: name.clone(),
        found,
        failure,
        skipped: false,
    };
    let mut cases = Vec::new();
    if speculator.verdict == Outcome::NotExercised {
        cases.push(Case {
            skipped: true,
            ..case("drafts", "not exercised: drafted no token".to_owned(), None)
        });
    } else if speculator.error.is_none() {
        let found = format!("{} drafted", counters.n_drafted);
        cases.push(case("drafts", found, failed(Check::Drafted)));
    }
    if let Some(floor) = &speculator.floor {
        let found = number(floor.measured, 3);
        let found = format!("{found}, floor {:.3}", floor.acceptance);
        cases.push(case("acceptance", found, failed(Check::Acceptance)));
    }
    if let Some(failure) = failed(Check::Speedup) {
        let found = format!("speedup {}", number(speculator.speedup, 2));
        cases.push(case("speed", found, Some(failure)));
    }
    if let Some(failure) = failed(Check::Speculator) {
        let found = match &speculator.error {
            Some(_) => "decoding failed",
            None => "disabled after a failure",
        };
        cases.push(case("speculator", found.to_owned(), Some(failure)));
    }
    cases
}

/// Formats the failure of a speculator on a prompt, with its likely causes.
fn failure(
    report: &VerifyReport,
    checks: &[Check],
    speculator: Option<&String>,
    prompt: Option<&String>,
) -> Option<String> {
    let failed = report.failed.iter().find(|failed| {
        checks.contains(&failed.check)
            && failed.speculator.as_ref() == speculator
            && failed.prompt_id.as_ref() == prompt
    })?;
    Some(message(failed))
}

fn message(failed: &FailedCheck) -> String {
    let causes = failed.likely_causes.iter();
    let causes = causes.map(|cause| format!("\nlikely cause: {cause}"));
    format!("{}{}", failed.message, causes.collect::<String>())
}

/// Returns the display name of a measure: its subject, kind and draft position.
pub(super) fn measure_name(measure: &Measure) -> String {
    let subject = measure.speculator.as_deref().unwrap_or("target");
    let kind = match measure.kind {
        MeasureKind::MeanKl => "mean KL",
        MeasureKind::TopAgreement => "top-1 agreement",
        MeasureKind::SameText => "same text",
        MeasureKind::Perplexity => "perplexity",
        MeasureKind::Acceptance => "acceptance",
        MeasureKind::TokensPerS => "tokens/s",
    };
    let position = measure.draft_position;
    let position = position.map_or(String::new(), |i| format!(" at position {i}"));
    format!("{subject} {kind}{position}")
}
