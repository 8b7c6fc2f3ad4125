//! A report in the formats that other tools show: JUnit XML, Markdown, one page of HTML.

use anyhow::Context;
use minijinja::context;
use minijinja::value::Serde;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use schemas::report::VerifyReport;
use serde::Serialize;

use super::cases::{Case, cases};
use crate::specrun::page;

const MARKDOWN: &str = include_str!("report.md.jinja");
const HTML: &str = include_str!("report.html.jinja");

/// A test suite for each stage, a test for each check.
///
/// # Errors
/// A name holds what XML cannot.
pub(super) fn junit(report: &VerifyReport) -> anyhow::Result<String> {
    let mut junit = Report::new("specrun verify");
    let cases = cases(report);
    for stage in stages(&cases) {
        let mut suite = TestSuite::new(stage);
        for case in cases.iter().filter(|case| case.stage == stage) {
            let status = match &case.failure {
                None => TestCaseStatus::success(),
                Some(failure) => {
                    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                    status.set_message(failure.as_str());
                    status
                }
            };
            let mut test = TestCase::new(case.name.as_str(), status);
            test.set_system_out(case.found.as_str());
            test.set_classname(report.model.as_str());
            suite.add_test_case(test);
        }
        junit.add_test_suite(suite);
    }
    junit.to_string().context("JUnit")
}

/// The summary of a job.
///
/// # Errors
/// A bug of the template.
pub(super) fn markdown(report: &VerifyReport) -> anyhow::Result<String> {
    render("report.md", MARKDOWN, report)
}

/// One page that needs nothing beside itself.
///
/// # Errors
/// A bug of the template.
pub(super) fn html(report: &VerifyReport) -> anyhow::Result<String> {
    render("report.html", HTML, report)
}

/// The stages, in the order of their first check.
fn stages(cases: &[Case]) -> Vec<&'static str> {
    let mut stages: Vec<&str> = cases.iter().map(|case| case.stage).collect();
    stages.dedup();
    stages
}

/// Tokens a second of the prompts of one kind, under one speculator.
#[derive(Serialize)]
struct Speed {
    kind: String,
    speculator: String,
    tokens_per_s: f64,
}

fn speeds(report: &VerifyReport) -> Vec<Speed> {
    let mut sums: Vec<(String, String, f64, f64)> = Vec::new();
    for run in &report.runs {
        let kind = run
            .prompt_kind
            .clone()
            .unwrap_or_else(|| "prompts".to_owned());
        let n = run.counters.n_tokens as f64;
        let ms = run.counters.decode_ms;
        match sums
            .iter_mut()
            .find(|s| s.0 == kind && s.1 == run.speculator)
        {
            Some(sum) => {
                sum.2 += n;
                sum.3 += ms;
            }
            None => sums.push((kind, run.speculator.clone(), n, ms)),
        }
    }
    let speeds = sums.into_iter().filter(|&(.., ms)| ms > 0.0);
    let speed = |(kind, speculator, n, ms): (String, String, f64, f64)| Speed {
        kind,
        speculator,
        tokens_per_s: 1e3 * n / ms,
    };
    speeds.map(speed).collect()
}

fn render(name: &str, template: &str, report: &VerifyReport) -> anyhow::Result<String> {
    let cases = cases(report);
    let n_failed = cases.iter().filter(|case| case.failure.is_some()).count();
    let shown = context! {
        report => Serde(report),
        stages => stages(&cases),
        n_failed,
        cases => Serde(&cases),
        speeds => Serde(speeds(report)),
    };
    page::render(name, template, shown)
}
