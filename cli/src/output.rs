//! The only module that prints. Data goes to stdout; talk goes to stderr: notes, progress, errors.

use std::fmt::Display;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Stdout could not be written.
#[derive(Debug)]
pub struct StdoutError(pub io::Error);

impl Display for StdoutError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "standard output: {}", self.0)
    }
}

impl std::error::Error for StdoutError {}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// The report, as schemas/json describes it.
    Json,
}

impl Format {
    /// What `--json` means.
    pub fn of(json: bool) -> Format {
        match json {
            true => Format::Json,
            false => Format::Text,
        }
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

/// Prints one of several results; as JSON on one line.
///
/// # Errors
/// Stdout is closed or full.
pub fn line(format: Format, report: &impl Serialize, text: &dyn Display) -> anyhow::Result<()> {
    match format {
        Format::Json => data(&format!("{}\n", serde_json::to_string(report)?)),
        Format::Text => data(&format!("{text}\n")),
    }
}

/// Prints text as it is, at once.
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

/// Tells what a user should know about a result.
pub fn note(text: &dyn Display) {
    talk(&format_args!("note: {text}"));
}

/// Prints that something failed which the command does without.
pub fn warning(text: &dyn Display) {
    talk(&format_args!("warning: {text}"));
}

/// Tells why a command could not run.
pub fn error(text: &dyn Display) {
    talk(&format_args!("error: {text}"));
}

/// A line on stderr.
pub fn talk(text: &dyn Display) {
    // Nobody is left to tell if stderr is closed.
    let text = printable(&text.to_string());
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Text with its control characters escaped: names in files may hold what commands a terminal.
fn printable(text: &str) -> String {
    let commands = |c: char| c.is_control() && c != '\n';
    text.chars().fold(String::new(), |mut out, c| {
        match commands(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
        out
    })
}

/// A bar that grows with the bytes done; shown only where stderr is a terminal.
pub fn progress(label: &str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} eta {eta}",
    );
    ProgressBar::new(total_bytes)
        .with_style(style.expect("the template is a constant that parses"))
        .with_message(label.to_owned())
}

/// Bytes as people read them, in powers of 1000.
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
    fn names_cannot_command_the_terminal() {
        assert_eq!(
            printable("evil\x1b[31m\x07\nname"),
            "evil\\u{1b}[31m\\u{7}\nname"
        );
    }

    #[test]
    fn sizes_have_three_digits() {
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
