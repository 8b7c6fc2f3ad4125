//! A report for other tools: JUnit XML and Markdown.

use minijinja::context;
use minijinja::value::Serde;
use schemas::report::VerifyReport;

use super::answers::answers;
use super::cases::{Case, cases, stages};
use crate::specrun::page;

const JUNIT: &str = include_str!("report.xml.jinja");
const MARKDOWN: &str = include_str!("report.md.jinja");

/// Renders a test suite per stage and a test case per check.
///
/// # Errors
/// The template has a bug.
pub(super) fn junit(report: &VerifyReport) -> anyhow::Result<String> {
    junit_of(&cases(report), &report.model)
}

/// Renders checks of `subject`.
///
/// # Errors
/// The template has a bug.
pub(super) fn junit_of(cases: &[Case], subject: &str) -> anyhow::Result<String> {
    let suites = stages(cases).into_iter().map(|stage| {
        let cases: Vec<&Case> = cases.iter().filter(|case| case.stage == stage).collect();
        let (n_failed, n_skipped) = counts(&cases);
        context! { stage, n_failed, n_skipped, cases => Serde(&cases) }
    });
    let suites: Vec<_> = suites.collect();
    let (n_failed, n_skipped) = counts(&cases.iter().collect::<Vec<_>>());
    let shown = context! { suites, subject, n_failed, n_skipped, n => cases.len() };
    page::render("report.xml", JUNIT, shown)
}

/// Counts the cases that failed, and those that were not exercised.
fn counts(cases: &[&Case]) -> (usize, usize) {
    let n_failed = cases.iter().filter(|case| case.failure.is_some()).count();
    (n_failed, cases.iter().filter(|case| case.skipped).count())
}

/// Renders a Markdown summary.
///
/// # Errors
/// The template has a bug.
pub(super) fn markdown(report: &VerifyReport) -> anyhow::Result<String> {
    let cases = cases(report);
    let (n_failed, n_skipped) = counts(&cases.iter().collect::<Vec<_>>());
    let shown = context! {
        report => Serde(report),
        answers => Serde(answers(report)),
        n_failed,
        n_skipped,
        cases => Serde(&cases),
    };
    page::render("report.md", MARKDOWN, shown)
}
