//! The only module that prints. Data goes to stdout; notes, progress and errors go to stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;

use crate::wrap::{width_of, wrap};
use crate::{embedded, progress};

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
    /// Nothing: another command prints its own result.
    None,
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
        Format::Text => {
            let text = printable(&format!("{text}\n"));
            data(&wrap(&text, width_of(&io::stdout())))
        }
        Format::None => Ok(()),
    }
}

/// Prints the results of a command that makes one file or several: JSON is one document, an object for
/// one file and an array for several.
///
/// # Errors
/// Stdout is closed or full.
pub fn results<R: Serialize>(
    format: Format,
    reports: &[R],
    text: &dyn Fn(&R) -> String,
) -> anyhow::Result<()> {
    let texts: Vec<String> = reports.iter().map(text).collect();
    match reports {
        [report] => result(format, report, &texts[0]),
        reports => result(format, &reports, &texts.join("\n")),
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
        Format::None => Ok(()),
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
    if embedded::write(bytes) {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|e| StdoutError(e).into())
}

/// Flags of every command that choose how much is printed to stderr.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Verbosity {
    /// Print only results, warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print more details, such as hashes and counters
    #[arg(short, long, global = true)]
    verbose: bool,
}

/// Amount of output on stderr: 0 quiet, 1 normal, 2 verbose.
static LEVEL: AtomicU8 = AtomicU8::new(1);

impl Verbosity {
    /// Applies the flags to everything that is printed from now on.
    pub fn apply(self) {
        let level = match (self.quiet, self.verbose) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        LEVEL.store(level, Ordering::Relaxed);
    }
}

/// True if stderr is a terminal, on which lines can be redrawn.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// True if stderr shows colors, and the user did not turn them off (https://no-color.org).
fn has_colors() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Highlights the kind of message that `text` begins with.
fn colored(kind: &str, text: &str) -> String {
    let color = match kind {
        "error" => 31,
        "warning" => 33,
        _ => 36,
    };
    format!("\x1b[1;{color}m{kind}\x1b[0m{}", &text[kind.len()..])
}

/// True with `--quiet`: notes and progress are not printed.
pub fn is_quiet() -> bool {
    LEVEL.load(Ordering::Relaxed) == 0
}

/// True with `--verbose`: results have more details.
pub fn is_verbose() -> bool {
    LEVEL.load(Ordering::Relaxed) == 2
}

/// Prints a note about a result.
pub fn note(text: &dyn Display) {
    if !is_quiet() {
        message(Some("note"), text);
    }
}

/// Prints a line about the run, such as its speed.
pub fn status(text: &dyn Display) {
    if !is_quiet() {
        message(None, text);
    }
}

/// Prints a warning about a failure that the command can continue without.
pub fn warning(text: &dyn Display) {
    message(Some("warning"), text);
}

/// Prints the reason why a command could not run.
pub fn error(text: &dyn Display) {
    message(Some("error"), text);
}

/// Prints what to do about an error.
pub fn hint(text: &dyn Display) {
    message(Some("hint"), text);
}

/// Prints a line to stderr, with its kind before it.
fn message(kind: Option<&'static str>, text: &dyn Display) {
    let text = printable(&text.to_string());
    if embedded::message(kind, &text) {
        return;
    }
    let text = kind.map_or_else(|| text.clone(), |kind| format!("{kind}: {text}"));
    let text = wrap(&text, width_of(&io::stderr()));
    let text = match kind {
        Some(kind) if has_colors() => colored(kind, &text),
        _ => text,
    };
    // An error of stderr cannot be reported anywhere.
    progress::without_bars(|| {
        let _ = writeln!(io::stderr().lock(), "{text}");
    });
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

/// Formats a count with its noun, which gets an `s` unless the count is 1.
pub fn count(n: u64, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
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
    fn only_the_kind_of_a_message_is_colored() {
        assert_eq!(
            colored("error", "error: m.gguf: no such file"),
            "\x1b[1;31merror\x1b[0m: m.gguf: no such file"
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
