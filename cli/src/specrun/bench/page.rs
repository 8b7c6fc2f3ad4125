//! Benchmark results for other viewers.

use std::path::{Path, PathBuf};

use minijinja::context;
use minijinja::value::Serde;
use schemas::report::{BenchReport, TasksReport};

use super::html;
use crate::report_file::OverwriteArgs;
use crate::specrun::page::{Pages, render};

/// Additional output files.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PageArgs {
    /// Also write a Markdown summary; appended if it is $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "OUT.md", conflicts_with = "compare")]
    markdown: Option<PathBuf>,
    /// Also write an HTML page: is it faster, with plots
    #[arg(long, value_name = "OUT.html", conflicts_with = "compare")]
    html: Option<PathBuf>,
    #[command(flatten)]
    overwrite: OverwriteArgs,
}

impl PageArgs {
    /// True if a file is requested.
    pub(super) fn is_given(&self) -> bool {
        self.markdown.is_some() || self.html.is_some()
    }

    /// Claims the files for pass costs.
    ///
    /// # Errors
    /// See [`Pages::new`].
    pub(super) fn widths(&self, inputs: &[&Path]) -> anyhow::Result<Pages<BenchReport>> {
        let markdown = |report: &BenchReport| {
            let shown = context! { report => Serde(report) };
            render("widths.md", include_str!("widths.md.jinja"), shown)
        };
        Pages::new(
            &[(&self.markdown, markdown), (&self.html, html::widths)],
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
        Pages::new(
            &[(&self.markdown, markdown), (&self.html, html::tasks)],
            inputs,
            self.overwrite.existing(),
        )
    }
}
