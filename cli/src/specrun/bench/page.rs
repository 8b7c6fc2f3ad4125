//! Benchmark results for other viewers: Markdown, one page of HTML.

use std::path::{Path, PathBuf};

use minijinja::context;
use minijinja::value::Serde;
use schemas::report::{BenchReport, TasksReport};

use crate::report_file::OverwriteArgs;
use crate::specrun::page::{Pages, render};

/// Additional output files.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PageArgs {
    /// Also write a Markdown summary; appended if it is $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "OUT.md", conflicts_with = "compare")]
    markdown: Option<PathBuf>,
    /// Also write an HTML page with plots
    #[arg(long, value_name = "OUT.html", conflicts_with = "compare")]
    html: Option<PathBuf>,
    #[command(flatten)]
    overwrite: OverwriteArgs,
}

impl PageArgs {
    /// Claims the files for pass costs.
    ///
    /// # Errors
    /// See [`Pages::new`].
    pub(super) fn widths(&self, inputs: &[&Path]) -> anyhow::Result<Pages<BenchReport>> {
        let markdown = |report: &BenchReport| {
            let shown = context! { report => Serde(report) };
            render("widths.md", include_str!("widths.md.jinja"), shown)
        };
        let html = |report: &BenchReport| {
            let shown = context! { report => Serde(report) };
            render("widths.html", include_str!("widths.html.jinja"), shown)
        };
        Pages::new(
            &[(&self.markdown, markdown), (&self.html, html)],
            inputs,
            self.overwrite.existing(),
        )
    }

    /// Claims the files for tasks.
    ///
    /// # Errors
    /// See [`Pages::new`].
    pub(super) fn tasks(&self, inputs: &[&Path]) -> anyhow::Result<Pages<TasksReport>> {
        let markdown = |report: &TasksReport| {
            let shown = context! { report => Serde(report) };
            render("tasks.md", include_str!("tasks.md.jinja"), shown)
        };
        let html = |report: &TasksReport| {
            let shown =
                context! { report => Serde(report), acceptance => acceptance_by_position(report) };
            render("tasks.html", include_str!("tasks.html.jinja"), shown)
        };
        Pages::new(
            &[(&self.markdown, markdown), (&self.html, html)],
            inputs,
            self.overwrite.existing(),
        )
    }
}

/// Returns the acceptance rate at each draft position, over all tasks.
fn acceptance_by_position(report: &TasksReport) -> Vec<f64> {
    let tasks = report.tasks.iter().map(|task| &task.by_draft_position);
    let n_positions = tasks.clone().map(Vec::len).max().unwrap_or(0);
    let sums = (0..n_positions).map(|i| {
        let counts = tasks.clone().filter_map(|positions| positions.get(i));
        counts.fold((0, 0), |(drafted, accepted), count| {
            (drafted + count.n_drafted, accepted + count.n_accepted)
        })
    });
    sums.filter(|&(drafted, _)| drafted > 0)
        .map(|(drafted, accepted)| accepted as f64 / drafted as f64)
        .collect()
}
