//! HTML pages of benchmarks.

use schemas::report::{BenchReport, SpeedChange, TaskReport, TasksReport, WidthCost};

use super::tasks::flags;
use crate::output::count;
use crate::specrun::page::html::{Answer, Cell, Page, Plot, Section, Table, Tone, files, origin};
use crate::specrun::page::plot::{Axes, Bar, columns, curve, rows};
use crate::specrun::page::{change, number};

/// Renders the page of pass costs.
///
/// # Errors
/// The template has a bug.
pub(super) fn widths(report: &BenchReport) -> anyhow::Result<String> {
    let share = report.read_bandwidth_share;
    let bandwidth = share.map_or(String::new(), |share| {
        format!(", {:.0} % of the memory's read bandwidth", 100.0 * share)
    });
    let speed = Answer {
        question: "How fast is it?",
        tone: Tone::Plain,
        answer: format!("{:.1} tokens/s", report.decode_tokens_per_s),
        detail: format!(
            "Decoding without drafts reads {:.1} GB/s of weights{bandwidth}. Prefill: {:.1} tokens/s over {} \
             tokens.",
            report.decode_gigabytes_per_s, report.prefill_tokens_per_s, report.n_prompt
        ),
    };
    // Drafts of three tokens are the default.
    let typical = report.widths.get(3).or(report.widths.last());
    let pays = typical.map(|width| {
        let n = width.n_tokens - 1;
        Answer {
            question: "When do drafts pay?",
            tone: Tone::Plain,
            answer: format!("from {:.2} of {n}", width.break_even_accepted),
            detail: format!(
                "Verifying a draft of {} takes {:.2} times a pass over one token: more than {:.2} of its tokens must \
                 be accepted. The time of drafting comes on top.",
                count(n as u64, "token"),
                width.ratio,
                width.break_even_accepted
            ),
        }
    });
    let mut facts = vec![("Model", report.model.clone())];
    facts.extend(origin(
        report.provenance.as_ref(),
        &report.backend,
        report.n_threads as u64,
    ));
    let page = Page {
        command: "specrun bench",
        subject: file_name(&report.model).to_owned(),
        verdict: None,
        answers: [speed].into_iter().chain(pays).collect(),
        facts,
        sections: cost(report)
            .into_iter()
            .chain([prefill(report), files(report.provenance.as_ref())])
            .collect(),
    };
    page.html()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn cost(report: &BenchReport) -> [Section; 2] {
    let row = |width: &WidthCost| {
        let values = [
            width.n_tokens.to_string(),
            format!("{:.2}", width.pass_ms),
            format!("{:.2}", width.ratio),
            format!("{:.2}", width.break_even_accepted),
        ];
        values.map(Cell::number).into()
    };
    let axes = |up, line| Axes {
        across: "tokens in the pass, draft included",
        up,
        top: None,
        line,
    };
    let ratios: Vec<f64> = report.widths.iter().map(|width| width.ratio).collect();
    let needed = report.widths.iter().map(|width| width.break_even_accepted);
    let line = Some((1.0, "1.0: as one token".to_owned()));
    let plots = vec![
        Plot {
            title: "Cost of a pass: T(n) / T(1)".to_owned(),
            svg: curve(&axes("T(n) / T(1)", line), &ratios, &[]),
            note: format!("Medians of {}.", count(report.n_rounds as u64, "round")),
        },
        Plot {
            title: "Break-even".to_owned(),
            svg: curve(
                &axes("accepted tokens", None),
                &needed.collect::<Vec<_>>(),
                &[],
            ),
            note: "Mean number of draft tokens that must be accepted per pass.".to_owned(),
        },
    ];
    let columns = [
        "tokens",
        "pass, ms",
        "T(n) / T(1)",
        "accepted to break even",
    ];
    let table = Table::new(&columns, report.widths.iter().map(row).collect());
    [
        Section {
            title: "Cost of a pass".to_owned(),
            plots,
            ..Section::default()
        },
        Section {
            title: "Passes by width".to_owned(),
            tables: vec![table],
            is_folded: true,
            ..Section::default()
        },
    ]
}

fn prefill(report: &BenchReport) -> Section {
    let rows = report.prefill.iter().map(|p| {
        let (tone, result) = match p.holds {
            true => (Tone::Pass, "pass"),
            false => (Tone::Fail, "fail"),
        };
        let speeds =
            [p.tokens_per_s, p.plain_tokens_per_s].map(|x| Cell::number(format!("{x:.1}")));
        let times = [p.added, p.work, p.limit].map(|x| Cell::number(format!("{x:.3}")));
        let name = [Cell::text(&p.speculator), Cell::of(tone, result)];
        name.into_iter().chain(speeds).chain(times).collect()
    });
    let columns = [
        "drafter",
        "result",
        "tokens/s",
        "without",
        "added time",
        "added work",
        "limit",
    ];
    Section {
        title: "Prefill with drafters".to_owned(),
        note: "Added time and work relative to the target's.".to_owned(),
        tables: vec![Table::new(&columns, rows.collect())],
        ..Section::default()
    }
}

/// Renders the page of tasks.
///
/// # Errors
/// The template has a bug.
pub(super) fn tasks(report: &TasksReport) -> anyhow::Result<String> {
    let mut facts = vec![("Model", report.model.clone())];
    let drafters = report.speculators.join(", ");
    facts.push(("Drafters", drafters));
    facts.extend(origin(
        report.provenance.as_ref(),
        &report.backend,
        report.n_threads.into(),
    ));
    facts.push(("Drafts", format!("up to {} tokens", report.n_draft_max)));
    let page = Page {
        command: "specrun bench --tasks",
        subject: file_name(&report.model).to_owned(),
        verdict: None,
        answers: vec![faster(report), accepted(report)],
        facts,
        sections: vec![
            task_plots(report),
            task_table(report),
            files(report.provenance.as_ref()),
        ],
    };
    page.html()
}

/// Answers how much time drafts save, and how certain it is.
fn faster(report: &TasksReport) -> Answer {
    let changes = report
        .tasks
        .iter()
        .filter_map(|task| Some(task.speed.as_ref()?.change));
    let n_of = |change| changes.clone().filter(|&found| found == change).count();
    let (n_faster, n_slower) = (n_of(SpeedChange::Faster), n_of(SpeedChange::Slower));
    let n_unclear = n_of(SpeedChange::Unclear);
    let (plain, drafted) = (report.plain_wall_s_total, report.aggregate.wall_s_total);
    let ratio = plain / drafted;
    let (tone, answer) = match (plain > 0.0 && drafted > 0.0, n_faster, n_slower) {
        (false, ..) => (Tone::Plain, "Not measured".to_owned()),
        (_, 0, 0) => (Tone::Odd, format!("Unclear, {ratio:.2}×")),
        (_, faster, slower) if ratio > 1.0 && faster > slower => {
            (Tone::Pass, format!("Yes, {ratio:.2}×"))
        }
        (_, faster, slower) if ratio < 1.0 && faster < slower => {
            (Tone::Fail, format!("No, {ratio:.2}×"))
        }
        _ => (Tone::Odd, format!("Mixed, {ratio:.2}×")),
    };
    Answer {
        question: "Is it faster?",
        tone,
        answer,
        detail: format!(
            "All tasks took {drafted:.2} s, {plain:.2} s without drafts. With 95 % confidence, {n_faster} of {} are \
             faster and {n_slower} slower; {n_unclear} unclear.",
            count(report.tasks.len() as u64, "task")
        ),
    }
}

/// Answers if enough tokens are accepted to pay for drafting.
fn accepted(report: &TasksReport) -> Answer {
    let all = &report.aggregate;
    let counts = format!(
        "{} of {} draft tokens",
        all.total_draft_accepted, all.total_draft
    );
    let rate = all.aggregate_accept_rate;
    let rate = rate.map_or("none drafted".to_owned(), |rate| {
        format!("{:.1} %", 100.0 * rate)
    });
    let (tone, detail) = match &report.break_even {
        Some(b) => {
            let pays = b.accepted_per_pass > b.needed_per_pass;
            let tone = if pays { Tone::Pass } else { Tone::Fail };
            let detail = format!(
                "{counts}: {:.2} per pass, break-even at {:.2}. Expected speedup {:.2}×, measured {:.2}×.",
                b.accepted_per_pass, b.needed_per_pass, b.expected_speedup, b.speedup
            );
            (tone, detail)
        }
        None => (Tone::Plain, format!("{counts}.")),
    };
    Answer {
        question: "Are enough drafts accepted?",
        tone,
        answer: rate,
        detail,
    }
}

fn task_plots(report: &TasksReport) -> Section {
    let bar = |task: &TaskReport, value: f64, text: String| Bar {
        label: task.task.clone(),
        value,
        text,
        range: None,
        note: String::new(),
        is_failed: false,
    };
    let drafted = report.tasks.iter().filter(|task| task.draft_n > 0);
    let speedups = drafted.clone().filter_map(|task| {
        let ratio = task.speed.as_ref()?.ratio;
        let text = format!("{:.2}×", ratio.median);
        Some(Bar {
            range: Some((ratio.min, ratio.max)),
            ..bar(task, ratio.median, text)
        })
    });
    let speeds = drafted.clone().filter_map(|task| {
        let speed = task.speed.as_ref()?.tokens_per_s;
        Some(Bar {
            range: Some((speed.min, speed.max)),
            ..bar(task, speed.median, format!("{:.1}", speed.median))
        })
    });
    let rates = drafted.filter_map(|task| {
        let rate = task.accept_rate?;
        Some(bar(task, rate, format!("{rate:.2}")))
    });
    let across = |up, top, line| Axes {
        across: "task",
        up,
        top,
        line,
    };
    let plain = report.tasks.iter().filter_map(|task| task.plain_per_second);
    let (sum, n) = plain.fold((0.0, 0), |(sum, n), speed| (sum + speed, n + 1));
    let mean = (n > 0).then(|| sum / f64::from(n));
    let mean = mean.map(|mean| (mean, format!("without drafts: {mean:.1}")));
    let drawn = [
        (
            "Speedup by task",
            across(
                "speed with drafts / speed without",
                None,
                Some((1.0, "1.0".to_owned())),
            ),
            speedups.collect::<Vec<_>>(),
        ),
        (
            "Speed by task",
            across("tokens/s", None, mean),
            speeds.collect(),
        ),
        (
            "Acceptance by task",
            across("acceptance rate", Some(1.0), None),
            rates.collect(),
        ),
    ];
    let drawn = drawn.into_iter().filter(|(.., bars)| !bars.is_empty());
    let mut plots: Vec<Plot> = drawn
        .map(|(title, axes, bars)| Plot {
            title: title.to_owned(),
            svg: rows(&axes, &bars),
            note: String::new(),
        })
        .collect();
    plots.extend(positions(report));
    Section {
        title: "Tasks".to_owned(),
        note: match report.n_runs {
            Some(n) => format!(
                "Medians and ranges of {}, with drafts and without.",
                count(n.into(), "run")
            ),
            None => String::new(),
        },
        plots,
        ..Section::default()
    }
}

/// Acceptance by draft position, over all tasks.
fn positions(report: &TasksReport) -> Option<Plot> {
    let mut sums: Vec<(u64, u64)> = Vec::new();
    for (i, position) in report
        .tasks
        .iter()
        .flat_map(|task| task.by_draft_position.iter().enumerate())
    {
        sums.resize(sums.len().max(i + 1), (0, 0));
        sums[i].0 += position.n_accepted;
        sums[i].1 += position.n_drafted;
    }
    let bars = (1..)
        .zip(sums)
        .filter(|(_, (_, n))| *n > 0)
        .map(|(i, (accepted, n))| {
            let rate = accepted as f64 / n as f64;
            Bar {
                label: format!("{i}"),
                value: rate,
                text: format!("{rate:.2}"),
                range: None,
                note: format!("{accepted} of {n}"),
                is_failed: false,
            }
        });
    let bars: Vec<Bar> = bars.collect();
    let axes = Axes {
        across: "draft position",
        up: "acceptance rate",
        top: Some(1.0),
        line: None,
    };
    (!bars.is_empty()).then(|| Plot {
        title: "Acceptance by draft position".to_owned(),
        svg: columns(&axes, &bars),
        note: "Accepted of drafted tokens, all tasks.".to_owned(),
    })
}

fn task_table(report: &TasksReport) -> Section {
    let row = |task: &TaskReport| {
        let (tone, change) = match task.speed.as_ref().map(|speed| speed.change) {
            Some(found @ SpeedChange::Faster) => (Tone::Pass, change(found)),
            Some(found @ SpeedChange::Slower) => (Tone::Fail, change(found)),
            Some(found) => (Tone::Plain, change(found)),
            None => (Tone::Odd, "not exercised"),
        };
        let range = task
            .speed
            .as_ref()
            .map(|speed| format!("{:.2} to {:.2}", speed.ratio.min, speed.ratio.max));
        let accepted = format!("{} of {}", task.draft_n_accepted, task.draft_n);
        vec![
            Cell::text(&task.task).with_lines(flags(task)),
            Cell::number(task.predicted_n.to_string()),
            Cell::number(number(task.accept_rate, 3)).with_lines(vec![accepted]),
            Cell::number(number(task.predicted_per_second, 1)),
            Cell::number(number(task.plain_per_second, 1)),
            Cell::number(number(task.speedup, 2)).with_lines(range.into_iter().collect()),
            Cell::of(tone, change),
        ]
    };
    let columns = [
        "task",
        "generated",
        "acceptance",
        "tokens/s",
        "without",
        "speedup",
        "change",
    ];
    let without_flags = report.aggregate_unflagged.as_ref().map(|all| {
        let rate = number(all.aggregate_accept_rate, 4);
        format!(
            "{} without a flag: acceptance {rate}.",
            count(all.n_requests, "task")
        )
    });
    Section {
        title: "Results".to_owned(),
        note: without_flags.unwrap_or_default(),
        tables: vec![Table::new(&columns, report.tasks.iter().map(row).collect())],
        ..Section::default()
    }
}
