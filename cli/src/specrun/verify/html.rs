//! The HTML page of a verification.

use schemas::report::{
    AgreementTexts, Check, FailedCheck, Floor, FloorMeasure, Outcome, Severity,
    SpeculatorAgreement, SpeculatorVerdict, VerifyReport,
};

use super::answers::{answers, has_failed};
use super::cases::{Case, cases, measure_name, stages};
use super::surface;
use crate::output::count;
use crate::specrun::page::html::{Cell, Page, Plot, Section, Table, Tone, files, origin};
use crate::specrun::page::plot::{Axes, Bar, Point, columns, curve, rows};
use crate::specrun::page::{change, number};

/// Failed checks that are shown at the top; the others are in the list of all checks.
const MAX_FAILURES: usize = 20;

/// Renders one self-contained page.
///
/// # Errors
/// The template has a bug.
pub(super) fn html(report: &VerifyReport) -> anyhow::Result<String> {
    let cases = cases(report);
    let (n, n_failed) = (cases.len() as u64, report.failed.len() as u64);
    let verdict = match n_failed {
        0 => (Tone::Pass, format!("passed, {}", count(n, "check"))),
        failed => (Tone::Fail, format!("{} failed", count(failed, "check"))),
    };
    let mut sections = vec![failures(report), likely_causes(report), speculators(report)];
    sections.extend(report.speculators.iter().map(|s| details(report, s)));
    sections.extend([
        agreement(report),
        surface::section(report),
        baseline(report),
        findings(report),
    ]);
    sections.extend(checks(&cases));
    sections.push(files(report.provenance.as_ref()));
    let mut subject = file_name(&report.model).to_owned();
    if let Some(draft) = &report.draft {
        let drafts: Vec<&str> = draft.split(", ").map(file_name).collect();
        subject += &format!(" with {}", drafts.join(", "));
    }
    let page = Page {
        command: "specrun verify",
        subject,
        verdict: Some(verdict),
        answers: answers(report).into(),
        facts: facts(report),
        sections,
    };
    page.html()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Names and values of the origin and the settings.
fn facts(report: &VerifyReport) -> Vec<(&'static str, String)> {
    let provenance = report.provenance.as_ref();
    let mut facts = vec![("Model", report.model.clone())];
    facts.extend(report.draft.clone().map(|draft| ("Draft", draft)));
    if let Some(file) = provenance.and_then(|p| p.files.first()) {
        facts.extend(file.file_type.clone().map(|name| ("File type", name)));
        let start = file.sha256.get(..16).unwrap_or(&file.sha256);
        facts.push(("SHA-256", format!("{start}…")));
    }
    facts.extend(origin(provenance, &report.backend, report.n_threads.into()));
    let sequences = count(report.n_parallel.into(), "sequence");
    let n_max = report.n_draft_max;
    facts.push((
        "Decoding",
        format!("drafts of up to {n_max} tokens, {sequences} at once"),
    ));
    facts
}

fn tone(report: &VerifyReport, s: &SpeculatorVerdict) -> Tone {
    match s.verdict {
        _ if has_failed(report, s) => Tone::Fail,
        Outcome::NotExercised => Tone::Odd,
        _ => Tone::Pass,
    }
}

/// Failed checks with their values.
fn failures(report: &VerifyReport) -> Section {
    let row = |f: &FailedCheck| {
        let prompt = f.prompt_id.iter().map(|id| format!("prompt {id}"));
        let subject = f.speculator.as_deref().unwrap_or("target");
        let subject = Cell::text(subject.replace(',', ", "));
        let digits = match f.check {
            Check::Drafted | Check::Target | Check::Invariance | Check::Agreement => 0,
            _ => 3,
        };
        let limit = match (f.check, f.found, f.limit) {
            (Check::Tokens | Check::Logits, ..) => "identical".to_owned(),
            (Check::Target | Check::Invariance | Check::Agreement, _, Some(limit)) => {
                format!("at most {limit:.digits$}")
            }
            (Check::Baseline, Some(found), Some(limit)) if found > limit => {
                format!("at most {limit:.digits$}")
            }
            (_, _, Some(limit)) => format!("at least {limit:.digits$}"),
            (_, _, None) => "-".to_owned(),
        };
        vec![
            Cell::of(Tone::Fail, format!("{:?}", f.check).to_lowercase()),
            subject.with_lines(prompt.collect()),
            Cell::number(number(f.baseline, digits)),
            Cell::number(number(f.found, digits)),
            Cell::number(limit),
            Cell::text(&f.message),
        ]
    };
    let columns = ["check", "drafter", "was", "now", "limit", "result"];
    let shown = report.failed.iter().take(MAX_FAILURES).map(row).collect();
    let n_more = report.failed.len().saturating_sub(MAX_FAILURES);
    Section {
        title: "Failed checks".to_owned(),
        note: match n_more {
            0 => String::new(),
            n => format!("The first {MAX_FAILURES}; {n} more are in the lists of checks."),
        },
        tables: vec![Table::new(&columns, shown)],
        ..Section::default()
    }
}

fn likely_causes(report: &VerifyReport) -> Section {
    let mut causes: Vec<&String> = Vec::new();
    for cause in report
        .failed
        .iter()
        .flat_map(|failed| &failed.likely_causes)
    {
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    let rows = causes.into_iter().map(|cause| vec![Cell::text(cause)]);
    Section {
        title: "Likely causes".to_owned(),
        tables: vec![Table::new(&["warning about the files"], rows.collect())],
        ..Section::default()
    }
}

/// All speculators, one per row.
fn speculators(report: &VerifyReport) -> Section {
    let row = |s: &SpeculatorVerdict| {
        let c = &s.counters;
        let tone = tone(report, s);
        let first = c.by_draft_position.first();
        let (speed, range) = match &s.speed {
            Some(speed) => (
                format!("{:.1}", speed.tokens_per_s.median),
                format!(
                    "{:.2} to {:.2}, {}",
                    speed.ratio.min,
                    speed.ratio.max,
                    change(speed.change)
                ),
            ),
            None => ("-".to_owned(), String::new()),
        };
        let speedup = Cell::number(number(s.speedup, 2));
        vec![
            Cell::text(s.name.replace(',', ", ")),
            Cell::of(
                tone,
                match tone {
                    Tone::Fail => "fail",
                    Tone::Odd => "not exercised",
                    _ => "pass",
                },
            ),
            Cell::number(format!("{} of {}", s.n_identical, s.n_prompts)),
            Cell::number(number(c.acceptance, 3))
                .with_lines(vec![format!("{} of {}", c.n_accepted, c.n_drafted)]),
            Cell::number(number(first.and_then(|position| position.acceptance), 3)),
            Cell::number(number(c.tokens_per_target_pass, 2)),
            Cell::number(speed),
            speedup.with_lines(
                Some(range)
                    .filter(|range| !range.is_empty())
                    .into_iter()
                    .collect(),
            ),
        ]
    };
    let columns = [
        "drafter",
        "result",
        "identical",
        "acceptance",
        "at position 1",
        "tokens/pass",
        "tokens/s",
        "speedup",
    ];
    let table = Table::new(&columns, report.speculators.iter().map(row).collect());
    Section {
        title: "Drafters".to_owned(),
        tables: vec![table],
        plots: speedups(report)
            .into_iter()
            .chain(break_even(report))
            .collect(),
        ..Section::default()
    }
}

fn speedups(report: &VerifyReport) -> Option<Plot> {
    let bar = |s: &SpeculatorVerdict| {
        let speed = s.speed.as_ref()?;
        Some(Bar {
            label: s.name.clone(),
            value: speed.ratio.median,
            text: format!("{:.2}×", speed.ratio.median),
            range: Some((speed.ratio.min, speed.ratio.max)),
            note: format!("in {} runs", speed.n_runs),
            is_failed: has_failed(report, s),
        })
    };
    let bars: Vec<Bar> = report.speculators.iter().filter_map(bar).collect();
    let axes = Axes {
        across: "drafter",
        up: "speed with drafts / speed without",
        top: None,
        line: Some((1.0, "1.0".to_owned())),
    };
    (!bars.is_empty()).then(|| Plot {
        title: "Speedup".to_owned(),
        svg: rows(&axes, &bars),
        note: "Median, smallest and largest ratio of neighboring runs. Beyond the line, drafts save time."
            .to_owned(),
    })
}

/// Cost of passes by width, and the tokens that drafters gain per pass.
fn break_even(report: &VerifyReport) -> Option<Plot> {
    let costs: Vec<f64> = report.widths.iter().map(|width| width.ratio).collect();
    let point = |s: &SpeculatorVerdict| {
        let (c, n_passes) = (&s.counters, s.counters.n_target_passes);
        let y = c.tokens_per_target_pass.filter(|_| c.n_drafted > 0)?;
        Some(Point {
            x: 1.0 + c.n_drafted as f64 / n_passes.max(1) as f64,
            y,
            label: s.name.clone(),
            is_failed: has_failed(report, s),
        })
    };
    let points: Vec<Point> = report.speculators.iter().filter_map(point).collect();
    let axes = Axes {
        across: "tokens in a pass, draft included",
        up: "tokens per pass, cost",
        top: None,
        line: None,
    };
    (!costs.is_empty()).then(|| Plot {
        title: "Break-even".to_owned(),
        svg: curve(&axes, &costs, &points),
        note: "Curve: T(n) / T(1), the cost of a pass over n tokens. Points: tokens per pass that a drafter \
               reached. Above the curve verification pays; the time of drafting comes on top."
            .to_owned(),
    })
}

/// Plots of one speculator.
fn details(report: &VerifyReport, s: &SpeculatorVerdict) -> Section {
    let is_failed = has_failed(report, s);
    let members = &s.counters.by_speculator;
    let rows = members.iter().filter(|_| members.len() > 1).map(|member| {
        let accepted = match member.n_drafted {
            0 => Cell::of(Tone::Odd, "not exercised"),
            n => Cell::number(format!("{} of {n}", member.n_accepted)),
        };
        vec![Cell::text(&member.name), accepted]
    });
    let plots = [
        acceptance(s, is_failed),
        lengths(s, is_failed),
        kinds(report, s, is_failed),
    ];
    Section {
        title: s.name.replace(',', ", "),
        note: s.error.clone().unwrap_or_default(),
        tables: vec![Table::new(
            &["member of the chain", "accepted"],
            rows.collect(),
        )],
        plots: plots.into_iter().flatten().collect(),
        is_folded: false,
    }
}

/// The 95 % confidence interval of a rate, as if the drafts were independent (Wilson score).
fn interval(accepted: u64, n: u64) -> (f64, f64) {
    let (n, z) = (n as f64, 1.96);
    let rate = accepted as f64 / n;
    let center = (rate + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (rate * (1.0 - rate) / n + z * z / (4.0 * n * n)).sqrt();
    ((center - half).max(0.0), (center + half).min(1.0))
}

fn acceptance(s: &SpeculatorVerdict, is_failed: bool) -> Option<Plot> {
    let positions = s.counters.by_draft_position.iter().enumerate();
    let bars = positions.filter_map(|(i, position)| {
        let rate = position.acceptance?;
        Some(Bar {
            label: (i + 1).to_string(),
            value: rate,
            text: format!("{rate:.2}"),
            range: Some(interval(position.n_accepted, position.n_drafted)),
            note: format!("{} of {}", position.n_accepted, position.n_drafted),
            is_failed,
        })
    });
    let bars: Vec<Bar> = bars.collect();
    let floor = s.floor.as_ref().map(|floor: &Floor| {
        let over = match floor.over {
            FloorMeasure::AllDrafts => "all positions",
            FloorMeasure::FirstDraftPosition => "position 1",
        };
        (
            floor.acceptance,
            format!("floor of {over}: {:.2}", floor.acceptance),
        )
    });
    let axes = Axes {
        across: "draft position",
        up: "acceptance rate",
        top: Some(1.0),
        line: floor,
    };
    (!bars.is_empty()).then(|| Plot {
        title: "Acceptance by draft position".to_owned(),
        svg: columns(&axes, &bars),
        note: "With the 95 % confidence interval, and accepted of drafted tokens.".to_owned(),
    })
}

fn lengths(s: &SpeculatorVerdict, is_failed: bool) -> Option<Plot> {
    let c = &s.counters;
    let total: u64 = c.accepted_lengths.iter().sum();
    let bars = c.accepted_lengths.iter().enumerate().map(|(k, &n)| Bar {
        label: k.to_string(),
        value: n as f64,
        text: n.to_string(),
        range: None,
        note: format!("{:.0} %", 100.0 * n as f64 / total.max(1) as f64),
        is_failed,
    });
    let bars: Vec<Bar> = bars.collect();
    let axes = Axes {
        across: "accepted tokens",
        up: "passes",
        top: None,
        line: None,
    };
    (c.n_drafted > 0).then(|| Plot {
        title: "Passes by accepted tokens".to_owned(),
        svg: columns(&axes, &bars),
        note: format!("Passes in all: {total}. Those at 0 gained nothing."),
    })
}

fn kinds(report: &VerifyReport, s: &SpeculatorVerdict, is_failed: bool) -> Option<Plot> {
    let kinds = s.speed.as_ref().map_or(&[][..], |speed| &speed.by_kind);
    let bars = kinds.iter().map(|kind| Bar {
        label: kind.kind.clone().unwrap_or_else(|| "prompts".to_owned()),
        value: kind.tokens_per_s,
        text: format!("{:.1}", kind.tokens_per_s),
        range: None,
        note: "tokens/s".to_owned(),
        is_failed,
    });
    let bars: Vec<Bar> = bars.collect();
    let plain = report
        .target
        .as_ref()
        .and_then(|target| target.tokens_per_s);
    let axes = Axes {
        across: "kind of prompt",
        up: "tokens/s",
        top: None,
        line: plain.map(|plain| (plain, format!("without drafts: {plain:.1}"))),
    };
    (!bars.is_empty()).then(|| Plot {
        title: "Speed by kind of prompt".to_owned(),
        svg: rows(&axes, &bars),
        note: String::new(),
    })
}

/// Drafts at every position of known texts.
fn agreement(report: &VerifyReport) -> Section {
    let Some(found) = &report.agreement else {
        return Section::default();
    };
    let row = |s: &SpeculatorAgreement| {
        let is_failed = s.error.is_some() || s.floor_held == Some(false);
        let rate = |k: usize| s.by_draft_position.get(k).and_then(|p| p.acceptance);
        let decoded = s.decoded.as_ref();
        let mut row = vec![
            Cell::text(&s.name).with_lines(s.error.clone().into_iter().collect()),
            match is_failed {
                true => Cell::of(Tone::Fail, "fail"),
                false => Cell::of(Tone::Pass, "pass"),
            },
        ];
        row.extend((0..3).map(|k| Cell::number(number(rate(k), 3))));
        row.push(Cell::number(number(s.tokens_per_target_pass, 2)));
        let per_pass = decoded.and_then(|c| c.tokens_per_target_pass);
        row.push(Cell::number(number(per_pass, 2)));
        row
    };
    let columns = [
        "drafter",
        "result",
        "position 1",
        "position 2",
        "position 3",
        "tokens/pass",
        "as decoded",
    ];
    let texts = match found.texts {
        AgreementTexts::Own => "texts that the target wrote once",
        AgreementTexts::Given => "pieces of a given text",
    };
    Section {
        title: "Agreement".to_owned(),
        note: format!(
            "Predicted acceptance: drafts at {} of {} {texts}, compared with the target's choices. As decoded: only the \
             positions where a pass of decoding begins.",
            count(found.n_positions, "position"),
            found.n_texts
        ),
        tables: vec![Table::new(
            &columns,
            found.speculators.iter().map(row).collect(),
        )],
        ..Section::default()
    }
}

/// The comparison with an earlier report.
fn baseline(report: &VerifyReport) -> Section {
    let Some(baseline) = &report.baseline else {
        return Section::default();
    };
    let rows = baseline.measures.iter().map(|m| {
        let (tone, result) = match m.holds {
            true => (Tone::Pass, "held"),
            false => (Tone::Fail, "missed"),
        };
        let mut row = vec![Cell::text(measure_name(m))];
        row.extend([m.baseline, m.found, m.limit].map(|value| Cell::number(format!("{value:.4}"))));
        row.push(Cell::of(tone, result));
        row
    });
    let mut tables = vec![Table::new(
        &["measure", "was", "now", "limit", "result"],
        rows.collect(),
    )];
    tables.extend(baseline.kl.as_ref().map(|kl| {
        let values = [
            Some(kl.mean),
            kl.standard_error,
            Some(kl.median),
            Some(kl.p90),
        ];
        let values = values
            .into_iter()
            .chain([kl.p95, kl.p99, kl.p99_9, kl.max].map(Some));
        let row = values.map(|value| Cell::number(number(value, 5))).collect();
        let columns = [
            "mean KL",
            "standard error",
            "median",
            "90 %",
            "95 %",
            "99 %",
            "99.9 %",
            "largest",
        ];
        Table::new(&columns, vec![row])
    }));
    Section {
        title: "Compared with an earlier report".to_owned(),
        note: format!(
            "{} ({}): {} of {}, {} with the same text.",
            baseline.report,
            baseline.model,
            count(baseline.n_positions, "position"),
            count(baseline.n_prompts, "prompt"),
            baseline.n_same_text
        ),
        tables,
        ..Section::default()
    }
}

/// Findings about the files.
fn findings(report: &VerifyReport) -> Section {
    let findings = report.fit.iter().flat_map(|fit| &fit.findings);
    let rows = findings.map(|f| {
        let severity = match f.severity {
            Severity::Certain => Cell::of(Tone::Fail, "fault"),
            Severity::Odd => Cell::of(Tone::Odd, "warning"),
        };
        let place = [file_name(&f.file), &f.subject].map(Cell::text);
        [severity]
            .into_iter()
            .chain(place)
            .chain([Cell::text(&f.message)])
            .collect()
    });
    let columns = ["severity", "file", "tensor or key", "finding"];
    Section {
        title: "Preflight of the files".to_owned(),
        tables: vec![Table::new(&columns, rows.collect())],
        ..Section::default()
    }
}

/// All checks, one folded section per stage.
fn checks(cases: &[Case]) -> impl Iterator<Item = Section> {
    stages(cases).into_iter().map(|stage| {
        let own = cases.iter().filter(|case| case.stage == stage);
        let counts =
            |is_counted: fn(&Case) -> bool| own.clone().filter(|case| is_counted(case)).count();
        let n_failed = counts(|case| case.failure.is_some());
        let n_skipped = counts(|case| case.skipped && case.failure.is_none());
        let mut title = format!("{stage}: {}", count(counts(|_| true) as u64, "check"));
        if n_failed > 0 {
            title += &format!(", {n_failed} failed");
        }
        if n_skipped > 0 {
            title += &format!(", {n_skipped} not exercised");
        }
        let rows = own.map(|case| {
            let (tone, result) = match (&case.failure, case.skipped) {
                (Some(_), _) => (Tone::Fail, "fail"),
                (None, true) => (Tone::Odd, "not exercised"),
                (None, false) => (Tone::Pass, "pass"),
            };
            let failure = case
                .failure
                .iter()
                .filter(|failure| **failure != case.found);
            let lines = failure.flat_map(|failure| failure.lines().map(str::to_owned));
            let found = Cell::text(&case.found).with_lines(lines.collect());
            vec![Cell::text(&case.name), Cell::of(tone, result), found]
        });
        Section {
            title,
            tables: vec![Table::new(&["check", "result", "found"], rows.collect())],
            is_folded: true,
            ..Section::default()
        }
    })
}
