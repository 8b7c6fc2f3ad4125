//! A report for other tools: JUnit XML, Markdown, one page of HTML.

use anyhow::Context;
use minijinja::context;
use minijinja::value::Serde;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use schemas::report::VerifyReport;

use super::cases::{Case, cases};
use crate::specrun::page;

const MARKDOWN: &str = include_str!("report.md.jinja");
const HTML: &str = include_str!("report.html.jinja");

/// Renders a test suite per stage and a test case per check.
///
/// # Errors
/// A name contains characters that XML does not allow.
pub(super) fn junit(report: &VerifyReport) -> anyhow::Result<String> {
    junit_of(&cases(report), &report.model)
}

/// Renders checks of `subject`.
///
/// # Errors
/// A name contains characters that XML does not allow.
pub(super) fn junit_of(cases: &[Case], subject: &str) -> anyhow::Result<String> {
    let mut junit = Report::new("specrun verify");
    for stage in stages(cases) {
        let mut suite = TestSuite::new(stage);
        for case in cases.iter().filter(|case| case.stage == stage) {
            let status = match &case.failure {
                None if case.skipped => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message("not exercised");
                    status
                }
                None => TestCaseStatus::success(),
                Some(failure) => {
                    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                    status.set_message(failure.as_str());
                    status
                }
            };
            let mut test = TestCase::new(case.name.as_str(), status);
            test.set_system_out(case.found.as_str());
            test.set_classname(subject);
            suite.add_test_case(test);
        }
        junit.add_test_suite(suite);
    }
    junit.to_string().context("JUnit")
}

/// Renders a Markdown summary.
///
/// # Errors
/// The template has a bug.
pub(super) fn markdown(report: &VerifyReport) -> anyhow::Result<String> {
    render("report.md", MARKDOWN, report)
}

/// Renders one self-contained HTML page.
///
/// # Errors
/// The template has a bug.
pub(super) fn html(report: &VerifyReport) -> anyhow::Result<String> {
    render("report.html", HTML, report)
}

/// Returns the stages in the order of their first check.
fn stages(cases: &[Case]) -> Vec<&'static str> {
    let mut stages: Vec<&str> = Vec::new();
    for case in cases {
        if !stages.contains(&case.stage) {
            stages.push(case.stage);
        }
    }
    stages
}

fn render(name: &str, template: &str, report: &VerifyReport) -> anyhow::Result<String> {
    let cases = cases(report);
    let n_failed = cases.iter().filter(|case| case.failure.is_some()).count();
    let n_skipped = cases.iter().filter(|case| case.skipped).count();
    let shown = context! {
        report => Serde(report),
        stages => stages(&cases),
        n_failed,
        n_skipped,
        cases => Serde(&cases),
    };
    page::render(name, template, shown)
}
