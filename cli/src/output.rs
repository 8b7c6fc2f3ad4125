//! The only module that prints. Data goes to stdout; notes, progress and errors go to stderr.

use std::fmt::Display;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// The error of writing to stdout.
#[derive(Debug)]
pub struct StdoutError(pub io::Error);

impl Display for StdoutError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "standard output: {}", self.0)
    }
}

impl std::error::Error for StdoutError {}

/// Output format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// The report as JSON, described by schemas/json.
    Json,
}

impl Format {
    /// Returns the format that `--json` selects.
    pub fn of(json: bool) -> Format {
        if json { Format::Json } else { Format::Text }
    }
}

/// Prints a result: the report as JSON, or its text.
///
/// # Errors
/// Stdout is closed or full.
pub fn result(format: Format, report: &impl Serialize, text: &dyn Display) -> anyhow::Result<()> {
    match format {
        Format::Json => data(&format!("{}\n", serde_json::to_string_pretty(report)?)),
        Format::Text => data(&printable(&format!("{text}\n"))),
    }
}

/// Prints one of several results; JSON is printed on one line.
///
/// # Errors
/// Stdout is closed or full.
pub fn line(format: Format, report: &impl Serialize, text: &dyn Display) -> anyhow::Result<()> {
    match format {
        Format::Json => data(&format!("{}\n", serde_json::to_string(report)?)),
        Format::Text => data(&format!("{text}\n")),
    }
}

/// Prints text unmodified and flushes it.
///
/// # Errors
/// Stdout is closed or full.
pub fn data(text: &str) -> anyhow::Result<()> {
    raw(text.as_bytes())
}

/// Prints bytes unmodified and flushes them.
///
/// # Errors
/// Stdout is closed or full.
pub fn raw(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|e| StdoutError(e).into())
}

/// Prints a note about a result.
pub fn note(text: &dyn Display) {
    message(&format_args!("note: {text}"));
}

/// Prints a warning about a failure that the command can continue without.
pub fn warning(text: &dyn Display) {
    message(&format_args!("warning: {text}"));
}

/// Prints the reason why a command could not run.
pub fn error(text: &dyn Display) {
    message(&format_args!("error: {text}"));
}

/// Prints a line to stderr.
pub fn message(text: &dyn Display) {
    // An error of stderr cannot be reported anywhere.
    let text = printable(&text.to_string());
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Escapes control characters: names in files could contain terminal escape sequences.
fn printable(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        if c.is_control() && c != '\n' {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

/// Returns a progress bar for `total_bytes`; it is visible only if stderr is a terminal.
pub fn progress(label: &str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} eta {eta}",
    );
    ProgressBar::new(total_bytes)
        .with_style(style.expect("the template is a constant that parses"))
        .with_message(label.to_owned())
}

/// Formats a number of bytes with a decimal unit (powers of 1000).
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut size = n as f64 / 1e3;
    let mut unit = 0;
    // 999.5 would print as 1000.
    while size >= 999.5 && unit + 1 < UNITS.len() {
        size /= 1e3;
        unit += 1;
    }
    let digits = match size {
        s if s < 9.995 => 2,
        s if s < 99.95 => 1,
        _ => 0,
    };
    format!("{size:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            printable("evil\x1b[31m\x07\nname"),
            "evil\\u{1b}[31m\\u{7}\nname"
        );
    }

    #[test]
    fn sizes_have_three_significant_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (7_904_512, "7.90 MB"),
            (31_999_000, "32.0 MB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (u64::MAX, "18446744 TB"),
        ];
        for (n, expected) in cases {
            assert_eq!(bytes(n), expected, "{n}");
        }
    }
}
