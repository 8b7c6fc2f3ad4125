//! Reports for other viewers: Markdown summaries and self-contained HTML pages.

pub(crate) mod html;
pub(crate) mod plot;

use std::path::{Path, PathBuf};

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment};
use schemas::outfile::{Existing, OutputNames};
use schemas::report::{Estimate, SpeedChange};

use crate::report_file::{self, ReportFile};

/// Renders a report in one format.
pub(super) type Render<R> = fn(&R) -> anyhow::Result<String>;

/// Output files of a report. They are claimed before the work starts, so that a bad path fails early.
pub(super) struct Pages<R> {
    files: Vec<(ReportFile, Render<R>)>,
}

impl<R> Pages<R> {
    /// Claims the files of the requested formats.
    ///
    /// # Errors
    /// A file cannot be written, is one of the inputs, or is named twice.
    pub(super) fn new(
        formats: &[(&Option<PathBuf>, Render<R>)],
        inputs: &[&Path],
        existing: Existing,
    ) -> anyhow::Result<Pages<R>> {
        let mut names = OutputNames::new(inputs, existing);
        let requested = formats
            .iter()
            .filter_map(|(path, render)| Some((path.as_ref()?, *render)));
        let files =
            requested.map(|(path, render)| Ok((ReportFile::new(path, &mut names)?, render)));
        Ok(Pages {
            files: files.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Writes all files, or none.
    ///
    /// # Errors
    /// A format cannot hold the report, or a file cannot be written.
    pub(super) fn write(self, report: &R) -> anyhow::Result<()> {
        let files = self.files.into_iter();
        let contents = files.map(|(file, render)| Ok((file, render(report)?.into_bytes())));
        report_file::publish(contents.collect::<anyhow::Result<_>>()?)
    }
}

/// Renders a template. Names that end in `.html` are HTML-escaped; templates of XML use the filter `xml`.
///
/// # Errors
/// The template has a bug.
pub(crate) fn render(name: &str, template: &str, shown: Value) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|name| {
        if name.ends_with(".html") {
            AutoEscape::Html
        } else {
            AutoEscape::None
        }
    });
    environment.add_filter("fixed", fixed);
    environment.add_filter("cell", cell);
    environment.add_filter("xml", xml);
    Ok(environment.render_named_str(name, template, shown)? + "\n")
}

/// Describes the outcome of a speed comparison.
pub(crate) fn change(change: SpeedChange) -> &'static str {
    match change {
        SpeedChange::Faster => "faster",
        SpeedChange::Slower => "slower",
        SpeedChange::Unclear => "unclear",
    }
}

/// Describes how weights are prefetched, by the distance in cache lines or in streams, if it is known.
pub(crate) fn prefetching(distance: Option<usize>, streams: bool) -> Option<String> {
    match distance {
        Some(0) => Some("weights are read without software prefetches".to_owned()),
        Some(distance) => Some(format!(
            "weights are prefetched {distance} cache lines ahead"
        )),
        None => streams.then(|| "weights are prefetched in several streams".to_owned()),
    }
}

/// Formats an estimate with its standard error.
pub(crate) fn estimate(estimate: &Estimate, digits: usize) -> String {
    let [value, error] = [estimate.value, estimate.standard_error].map(|x| decimal(x, digits));
    format!("{value} ± {error}")
}

/// Formats a number with `digits` decimal places, without the sign of a zero.
pub(crate) fn decimal(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|byte| b"0.".contains(&byte)) => zero.to_owned(),
        _ => text,
    }
}

/// Formats a number with `digits` decimal places, or a dash for `None`.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn fixed(value: Value, digits: usize) -> String {
    number(f64::try_from(value).ok(), digits)
}

/// Escapes text for XML elements and attributes. Characters that XML 1.0 does not allow are replaced.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push_str(&format!("&#{};", c as u32)),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}

/// Escapes text for a cell of a Markdown table.
fn cell(text: String) -> String {
    text.replace('|', "\\|").replace('\n', "<br>")
}
