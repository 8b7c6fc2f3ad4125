//! `specrun bench --tasks` and `--compare`: speed and acceptance per kind of task.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use runner::chat::ChatMode;
use schemas::input;
use schemas::report::{TaskFlag, TaskReport, TasksReport};
use verify::prompts::{self, Prompt, PromptLines};
use verify::server::{ServerBenchConfig, bench_server};
use verify::tasks::{TasksConfig, tasks};
use verify::{DecodeOptions, Machine};

use super::Args;
use crate::hint::Hinted;
use crate::output::{self, Format};
use crate::provenance::provenance;
use crate::specrun::device::{Device, on_device};
use crate::specrun::page::{change, number};

/// Built-in prompts for the kinds of task that published numbers use.
const TASKS: &str = include_str!("tasks.jsonl");
/// Tokens generated per task, as in published numbers.
const N_PREDICT: usize = 192;

/// Timed runs of all tasks, with and without drafts.
const N_RUNS: usize = 3;

/// Number of draft positions in the text output; the JSON report has all.
const MAX_POSITIONS: usize = 8;

/// Runs all tasks and prints the results.
pub(super) fn run(args: &Args, model: &Path) -> anyhow::Result<()> {
    let lines = lines(args)?;
    let mut prompts: Vec<Prompt> = args.chat.prompts(lines, model, ChatMode::WherePossible)?;
    for prompt in &mut prompts {
        prompt.n_predict = args.length.n_predict.or(prompt.n_predict);
    }
    let config = TasksConfig {
        model: model.to_path_buf(),
        drafts: args.spec.drafts()?,
        spec_types: args.spec.spec_types()?.unwrap_or_default(),
        prompts,
        n_predict: N_PREDICT,
        options: DecodeOptions {
            sample: args.sample.config(),
            ..args.spec.options(&args.caches, &args.context)?
        },
        n_runs: args.repetitions.map_or(N_RUNS, usize::from),
    };
    let inputs = config.drafts.paths();
    let inputs: Vec<&Path> = inputs
        .chain([&config.model])
        .chain(&args.prompts)
        .map(PathBuf::as_path)
        .collect();
    let pages = args.pages.tasks(&inputs)?;
    let mut report = measure(&args.machine.device(model)?, &config)?;
    report.provenance = args.origin(model, &config.drafts, Some(&config.prompts))?;
    pages.write(&report)?;
    output::result(Format::of(args.json), &report, &Text(&report))
}

/// Runs all tasks on a device.
pub(in crate::specrun) fn measure(
    device: &Device,
    config: &TasksConfig,
) -> anyhow::Result<TasksReport> {
    let n_threads = device.n_threads();
    on_device!(device, backend => {
        let backend = Arc::clone(backend);
        tasks(&Machine { backend, n_threads }, config).map_err(Into::into)
    })
}

/// Runs all tasks on a server and prints the results.
pub(super) fn run_on_server(args: &Args, url: &str) -> anyhow::Result<()> {
    let mut prompts = lines(args)?.plain()?;
    for prompt in &mut prompts {
        prompt.n_predict = args.length.n_predict.or(prompt.n_predict);
    }
    let inputs: Vec<&Path> = args.prompts.iter().map(PathBuf::as_path).collect();
    let pages = args.pages.tasks(&inputs)?;
    let origin = provenance([], Some(&prompts))?;
    let mut report = bench_server(&ServerBenchConfig {
        url: url.to_owned(),
        key: args.api_key.clone(),
        prompts,
        n_predict: N_PREDICT,
        n_runs: args.repetitions.map_or(N_RUNS, usize::from),
    })?;
    report.provenance = Some(origin);
    pages.write(&report)?;
    output::result(Format::of(args.json), &report, &Text(&report))
}

fn lines(args: &Args) -> anyhow::Result<PromptLines> {
    Ok(match &args.prompts {
        Some(path) => prompts::read_lines(path)?,
        None => prompts::parse_lines(Path::new("built-in tasks"), TASKS)?,
    })
}

/// Text output with the columns of the mtp-bench script.
struct Text<'a>(&'a TasksReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let speculators = r.speculators.join(",");
        write!(f, "{}, {}", r.model, r.backend)?;
        // A server reports neither.
        match r.n_threads {
            0 => writeln!(f)?,
            n => writeln!(f, ", {n} threads")?,
        }
        let drafts = match (r.n_draft_max, speculators.is_empty()) {
            (0, true) => String::new(),
            (0, false) => speculators + "\n",
            (n, _) => format!("{speculators}, drafts of up to {n} tokens\n"),
        };
        let n_runs = r.n_runs.unwrap_or(1);
        // A server may have no switch for drafts.
        let runs = match r.tasks.iter().any(|task| task.plain_per_second.is_some()) {
            true => "runs with drafts and without, alternating; ranges in brackets",
            false => "runs",
        };
        writeln!(f, "{drafts}medians of {n_runs} {runs}\n")?;
        for t in &r.tasks {
            let rates = t.by_draft_position.iter().take(MAX_POSITIONS);
            let rates: String = rates
                .map(|p| " ".to_owned() + &number(p.acceptance, 2))
                .collect();
            writeln!(
                f,
                "{:<18} pred={:>4} draft={:>4} acc={:>4} rate={} tok/s={}",
                t.task,
                t.predicted_n,
                t.draft_n,
                t.draft_n_accepted,
                rate(t),
                number(t.predicted_per_second, 1)
            )?;
            writeln!(
                f,
                "  plain={} speedup={}{}",
                number(t.plain_per_second, 1),
                number(t.speedup, 2),
                range(t)
            )?;
            if !rates.is_empty() {
                writeln!(f, "  by position{rates}")?;
            }
            for flag in flags(t) {
                writeln!(f, "  {flag}")?;
            }
        }
        let all = &r.aggregate;
        write!(
            f,
            "\nall {} tasks: {} tokens in {:.2} s ({:.2} s without drafts)\n  drafted {}, accepted {}, \
             acceptance {}",
            all.n_requests,
            all.total_predicted,
            all.wall_s_total,
            r.plain_wall_s_total,
            all.total_draft,
            all.total_draft_accepted,
            number(all.aggregate_accept_rate, 4)
        )?;
        if let Some(unflagged) = &r.aggregate_unflagged {
            let rate = number(unflagged.aggregate_accept_rate, 4);
            let n = unflagged.n_requests;
            write!(f, "\nwithout flagged tasks: {n} tasks, acceptance {rate}")?;
        }
        if let Some(b) = &r.break_even {
            write!(
                f,
                "\n\naccepted {:.2} draft tokens per pass, break-even {:.2}\nspeedup {:.2} expected, {:.2} measured: {}",
                b.accepted_per_pass,
                b.needed_per_pass,
                b.expected_speedup,
                b.speedup,
                if b.holds { "pass" } else { "FAIL" }
            )?;
        }
        Ok(())
    }
}

/// Formats the range of a task's speedups, and whether it is a gain.
fn range(task: &TaskReport) -> String {
    match &task.speed {
        Some(speed) => format!(
            " ({:.2} to {:.2}, {})",
            speed.ratio.min,
            speed.ratio.max,
            change(speed.change)
        ),
        None if task.draft_n == 0 => " (not exercised)".to_owned(),
        None => String::new(),
    }
}

/// Formats the flags that qualify a task's acceptance rate.
pub(super) fn flags(task: &TaskReport) -> Vec<String> {
    let flag = |flag: &TaskFlag| match (flag, &task.longest_loop) {
        (TaskFlag::HighEntropy, _) => "high entropy".to_owned(),
        (TaskFlag::Looping, Some(found)) => {
            let (n, percent) = (found.n_gram, 100.0 * found.share);
            format!("loops: {n} tokens repeat in {percent:.0}% of the text")
        }
        (TaskFlag::Looping, None) => "loops".to_owned(),
    };
    task.flags.iter().map(flag).collect()
}

fn rate(task: &TaskReport) -> String {
    task.accept_rate
        .map_or("n/a".to_owned(), |rate| format!("{rate:.3}"))
}

/// Compares two results of `--tasks --json`.
pub(super) fn compare(paths: &[PathBuf]) -> anyhow::Result<()> {
    let read = |path: &PathBuf| -> anyhow::Result<TasksReport> {
        let name = || path.display().to_string();
        let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST);
        let text = text.with_context(name)?;
        serde_json::from_str(&text).map_err(|_| {
            let message = format!("{}: expected a result of specrun bench --tasks --json", name());
            let hint = "make one with \"specrun bench MODEL --tasks --json > A.json\"; reports of verify are \
                        compared with \"specrun verify MODEL --baseline REPORT\"";
            Hinted::new(message, hint).into()
        })
    };
    let reports = paths.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    output::data(&Comparison(&reports).to_string())
}

struct Comparison<'a>(&'a [TasksReport]);

impl Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.0 else { return Ok(()) };
        writeln!(f, "a  {}\nb  {}\n", a.model, b.model)?;
        writeln!(
            f,
            "{:<18}  rate a  rate b  tok/s a  tok/s b   b / a",
            "task"
        )?;
        for task in &a.tasks {
            let Some(other) = b.tasks.iter().find(|other| other.task == task.task) else {
                continue;
            };
            let speeds = (task.predicted_per_second, other.predicted_per_second);
            let ratio = match speeds {
                (Some(a), Some(b)) if a > 0.0 => Some(b / a),
                _ => None,
            };
            writeln!(
                f,
                "{:<18}  {:>6}  {:>6}  {:>7}  {:>7}  {:>6}",
                task.task,
                rate(task),
                rate(other),
                number(speeds.0, 1),
                number(speeds.1, 1),
                number(ratio, 2)
            )?;
        }
        let rates = [a, b].map(|r| number(r.aggregate.aggregate_accept_rate, 4));
        let walls = [a, b].map(|r| r.aggregate.wall_s_total);
        writeln!(
            f,
            "\noverall acceptance {} and {}, wall time {} s and {} s",
            rates[0], rates[1], walls[0], walls[1]
        )
    }
}
