//! Shows the progress of long work on stderr: a bar on a terminal, a line about every ten seconds in a
//! log, nothing with `--quiet`.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use schemas::progress::{self, Event, Unit};

use crate::output;

/// Time between two lines of a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Bars of all tasks, one below the other.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
/// Everything in progress.
static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// Shows the tasks of this process from now on.
pub(crate) fn install() {
    progress::observe(observe);
}

/// Runs `print` while no bar is on the screen.
pub(crate) fn without_bars(print: impl FnOnce()) {
    match output::is_terminal() {
        true => BARS.suspend(print),
        false => print(),
    }
}

/// The tasks in progress.
#[derive(Default)]
struct State {
    /// Tasks by their number.
    tasks: HashMap<u64, Shown>,
    /// Time of the last line in the log, of any task; `None` before the first task.
    last_line: Option<Instant>,
}

/// A task on the screen or in the log.
enum Shown {
    Bar(ProgressBar),
    Lines(Lines, Instant),
}

fn observe(id: u64, event: Event<'_>) {
    if output::is_quiet() {
        return;
    }
    let mut line = None;
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let State { tasks, last_line } = &mut *state;
    match event {
        Event::Started { label, total, unit } => {
            let shown = match output::is_terminal() {
                true => Shown::Bar(bar(label, total, unit)),
                false => Shown::Lines(Lines::new(label, total, unit), Instant::now()),
            };
            last_line.get_or_insert_with(Instant::now);
            tasks.insert(id, shown);
        }
        Event::Advanced { n } => match tasks.get_mut(&id) {
            Some(Shown::Bar(bar)) => bar.inc(n),
            Some(Shown::Lines(lines, start)) => {
                lines.done = lines.done.saturating_add(n);
                // Short tasks one after another are reported like a long one.
                if last_line.is_some_and(|last| last.elapsed() >= LINE_INTERVAL) {
                    *last_line = Some(Instant::now());
                    line = Some(lines.text(start.elapsed()));
                }
            }
            None => {}
        },
        Event::Finished => {
            if let Some(Shown::Bar(bar)) = tasks.remove(&id) {
                bar.finish_and_clear();
            }
        }
    }
    drop(state);
    if let Some(line) = line {
        output::status(&line);
    }
}

fn bar(label: &str, total: u64, unit: Unit) -> ProgressBar {
    let amounts = match unit {
        Unit::Bytes => {
            "{decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}".to_owned()
        }
        Unit::Steps(name) => format!("{{pos}} of {{len}} {name}"),
    };
    // The message takes what is left of the line, so that no line wraps.
    let template = format!("{{wide_msg}} {{bar:16}} {amounts}, {{eta}} left");
    let style = ProgressStyle::with_template(&template);
    let bar = ProgressBar::new(total)
        .with_style(style.expect("the template has known fields"))
        .with_message(short(label));
    BARS.add(bar)
}

/// Returns a label without the folders of its path: "write /a/b.gguf" becomes "write b.gguf".
fn short(label: &str) -> String {
    match label.split_once(' ') {
        Some((verb, path)) => format!("{verb} {}", path.rsplit('/').next().unwrap_or(path)),
        None => label.to_owned(),
    }
}

/// Progress of a task in a log.
struct Lines {
    label: String,
    total: u64,
    unit: Unit,
    done: u64,
}

impl Lines {
    fn new(label: &str, total: u64, unit: Unit) -> Lines {
        Lines {
            label: label.to_owned(),
            total,
            unit,
            done: 0,
        }
    }

    /// Returns the line to print `elapsed` after the start.
    fn text(&self, elapsed: Duration) -> String {
        let rate = self.done as f64 / elapsed.as_secs_f64();
        let rest = self.total.saturating_sub(self.done) as f64;
        let left = if rate > 0.0 { rest / rate } else { 0.0 };
        let Lines { label, total, .. } = self;
        let amounts = match self.unit {
            Unit::Bytes => format!(
                "{} of {}, {}/s",
                output::bytes(self.done),
                output::bytes(*total),
                output::bytes(rate as u64)
            ),
            Unit::Steps(name) => format!("{} of {total} {name}", self.done),
        };
        format!("{label}: {amounts}, {} left", duration(left))
    }
}

/// Formats seconds as a duration with one or two units.
fn duration(seconds: f64) -> String {
    let n = seconds.round() as u64;
    match (n / 3600, n / 60 % 60, n % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_the_name_of_a_file() {
        assert_eq!(short("write /models/a b/c.gguf"), "write c.gguf");
        assert_eq!(
            short("write c.gguf (with its head)"),
            "write c.gguf (with its head)"
        );
        assert_eq!(short("perplexity"), "perplexity");
    }

    #[test]
    fn a_line_has_amounts_rate_and_time_left() {
        let text = |unit, total, done, seconds| {
            let mut lines = Lines::new("m.gguf", total, unit);
            lines.done = done;
            lines.text(Duration::from_secs(seconds))
        };
        assert_eq!(
            text(Unit::Bytes, 4_000_000_000, 1_000_000_000, 10),
            "m.gguf: 1.00 GB of 4.00 GB, 100 MB/s, 30 s left"
        );
        assert_eq!(
            text(Unit::Steps("texts"), 36, 3, 60),
            "m.gguf: 3 of 36 texts, 11 min 0 s left"
        );
    }
}
