//! A report for other tools: JUnit XML and Markdown.

use anyhow::Context;
use minijinja::context;
use minijinja::value::Serde;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use schemas::report::VerifyReport;

use super::answers::answers;
use super::cases::{Case, cases, stages};
use crate::specrun::page;

const MARKDOWN: &str = include_str!("report.md.jinja");

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
    let cases = cases(report);
    let n_failed = cases.iter().filter(|case| case.failure.is_some()).count();
    let n_skipped = cases.iter().filter(|case| case.skipped).count();
    let shown = context! {
        report => Serde(report),
        answers => Serde(answers(report)),
        n_failed,
        n_skipped,
        cases => Serde(&cases),
    };
    page::render("report.md", MARKDOWN, shown)
}
