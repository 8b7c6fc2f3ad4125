//! The HTML page of a divergence: a table of all models, and the distribution of each.

use schemas::report::{KldReport, ModelDivergence};

use super::file_name;
use crate::output::{bytes, count};
use crate::specrun::page::html::{Answer, Cell, Page, Plot, Section, Table, Tone, files, program};
use crate::specrun::page::plot::{Axes, Bar, columns, rows};
use crate::specrun::page::{decimal, estimate};

/// Renders one self-contained page.
///
/// # Errors
/// The template has a bug.
pub(super) fn html(report: &KldReport) -> anyhow::Result<String> {
    let shown = shown_ranges(report);
    let mut sections = vec![overview(report)];
    let distributions = report.models.iter();
    sections.extend(distributions.map(|model| distribution(model, &shown)));
    sections.push(files(report.provenance.as_ref()));
    let page = Page {
        command: "specrun kld",
        subject: format!("Divergence from {}", file_name(&report.base)),
        verdict: None,
        answers: answers(report),
        facts: facts(report),
        sections,
    };
    page.html()
}

fn facts(report: &KldReport) -> Vec<(&'static str, String)> {
    let mut facts = vec![("Base", report.base.clone())];
    facts.extend(report.text.clone().map(|text| ("Text", text)));
    let chunks = count(report.n_chunks as u64, "chunk");
    let tokens = count(report.n_scored as u64, "token");
    facts.push((
        "Scored",
        format!("{tokens} in {chunks} of {}", report.n_ctx),
    ));
    facts.push((
        "Perplexity of the base",
        estimate(&report.base_perplexity, 4),
    ));
    facts.extend(program(report.provenance.as_ref()));
    facts
}

/// Answers about the closest model, the smallest one, and the positions that differ most.
fn answers(report: &KldReport) -> Vec<Answer> {
    let by = |key: fn(&ModelDivergence) -> f64| {
        let models = report.models.iter();
        models.min_by(|a, b| key(a).total_cmp(&key(b)))
    };
    let answer = |question, model: &ModelDivergence| Answer {
        question,
        tone: Tone::Plain,
        answer: decimal(model.kld.mean.value, 6),
        detail: format!(
            "mean KL divergence of {}, {}; the same top token at {:.2} % of the positions",
            file_name(&model.model),
            bytes(model.size_bytes),
            100.0 * model.same_top.value
        ),
    };
    let closest = by(|model| model.kld.mean.value);
    let smallest = by(|model| model.size_bytes as f64);
    let closest_answer = closest.map(|model| answer("How close is the best model?", model));
    let is_other = |model: &&ModelDivergence| closest.is_none_or(|best| best.model != model.model);
    let smallest = smallest.filter(is_other);
    let smallest_answer = smallest.map(|model| answer("How close is the smallest model?", model));
    closest_answer.into_iter().chain(smallest_answer).collect()
}

/// All models, one per row, with their means as bars.
fn overview(report: &KldReport) -> Section {
    let row = |model: &ModelDivergence| {
        let at = |percent| model.kld.percentile(percent).unwrap_or_default();
        let mean = Cell::number(decimal(model.kld.mean.value, 6));
        let mut row = vec![
            Cell::text(file_name(&model.model)),
            Cell::number(bytes(model.size_bytes)).with_lines(vec![format!(
                "{:.2}\u{a0}bits/weight",
                model.bits_per_weight
            )]),
            mean.with_lines(vec![format!(
                "± {}",
                decimal(model.kld.mean.standard_error, 6)
            )]),
        ];
        let percentiles = [50.0, 90.0, 99.0, 99.9, 100.0];
        row.extend(percentiles.map(|percent| Cell::number(decimal(at(percent), 4))));
        row.extend([
            Cell::number(format!("{:.2}\u{a0}%", 100.0 * model.same_top.value)),
            Cell::number(format!("{:.3}\u{a0}%", model.delta_p_rms_percent.value)),
            Cell::number(format!("{:.4}", model.perplexity_ratio.value)),
        ]);
        row
    };
    let names = [
        "file",
        "size",
        "mean KLD",
        "median",
        "90 %",
        "99 %",
        "99.9 %",
        "largest",
        "same top token",
        "RMS Δp",
        "perplexity ratio",
    ];
    let bars = report.models.iter().map(|model| {
        let (mean, error) = (model.kld.mean.value, model.kld.mean.standard_error);
        Bar {
            label: file_name(&model.model),
            value: mean.max(0.0),
            text: decimal(mean, 4),
            range: Some(((mean - error).max(0.0), (mean + error).max(0.0))),
            note: bytes(model.size_bytes),
            is_failed: false,
        }
    });
    let bars: Vec<Bar> = bars.collect();
    let axes = Axes {
        across: "file",
        up: "mean KL divergence, nats",
        top: None,
        line: None,
    };
    Section {
        title: "Models".to_owned(),
        note: "KL divergence of the next-token distribution from the base's, in nats. 0 is equal."
            .to_owned(),
        tables: vec![Table::new(&names, report.models.iter().map(row).collect())],
        plots: vec![Plot {
            title: "Mean divergence".to_owned(),
            svg: rows(&axes, &bars),
            note: "With the standard error, as if positions were independent.".to_owned(),
        }],
        ..Section::default()
    }
}

/// Returns position and start of the ranges that any model has positions in. All models are plotted over the
/// same ranges.
fn shown_ranges(report: &KldReport) -> Vec<(usize, f64)> {
    let histograms = || report.models.iter().map(|model| &model.kld_histogram);
    let is_used = |i: usize| histograms().any(|bins| bins.get(i).is_some_and(|bin| bin.n > 0));
    let longest = histograms().max_by_key(|bins| bins.len());
    let starts = longest.into_iter().flatten().map(|bin| bin.from);
    let starts: Vec<(usize, f64)> = starts.enumerate().collect();
    let used = |(i, _): &(usize, f64)| is_used(*i);
    match (starts.iter().position(&used), starts.iter().rposition(used)) {
        (Some(first), Some(last)) => starts[first..=last].to_vec(),
        _ => Vec::new(),
    }
}

/// The histogram and the percentiles of one model.
fn distribution(model: &ModelDivergence, shown: &[(usize, f64)]) -> Section {
    let total: u64 = model.kld_histogram.iter().map(|bin| bin.n).sum();
    let share = |n: u64| 100.0 * n as f64 / total.max(1) as f64;
    let bars = shown.iter().map(|&(i, from)| {
        let n = model.kld_histogram.get(i).map_or(0, |bin| bin.n);
        Bar {
            label: match from > 0.0 {
                true => format!("{from:e}"),
                false => "0".to_owned(),
            },
            value: share(n),
            text: format!("{:.0}", share(n)),
            range: None,
            note: String::new(),
            is_failed: false,
        }
    });
    let bars: Vec<Bar> = bars.collect();
    let histogram = Plot {
        title: "Positions by divergence".to_owned(),
        svg: columns(
            &Axes {
                across: "KL divergence, nats, start of the range",
                up: "positions, %",
                top: None,
                line: None,
            },
            &bars,
        ),
        note: format!(
            "{}. Ranges are those of all models of this page.",
            count(total, "position")
        ),
    };
    let percentiles = model.kld.percentiles.iter().rev();
    let percentiles = percentiles.filter(|p| p.percent >= 50.0).map(|p| Bar {
        label: match p.percent {
            100.0 => "largest".to_owned(),
            50.0 => "median".to_owned(),
            percent => format!("{percent} %"),
        },
        value: p.value.max(0.0),
        text: decimal(p.value, 4),
        range: None,
        note: String::new(),
        is_failed: false,
    });
    let percentiles: Vec<Bar> = percentiles.collect();
    let percentile_plot = Plot {
        title: "Percentiles".to_owned(),
        svg: rows(
            &Axes {
                across: "share of the positions",
                up: "KL divergence, nats",
                top: None,
                line: Some((
                    model.kld.mean.value.max(0.0),
                    format!("mean: {}", decimal(model.kld.mean.value, 4)),
                )),
            },
            &percentiles,
        ),
        note: "The divergence that this share of the positions does not exceed.".to_owned(),
    };
    let plots = [
        (!bars.is_empty()).then_some(histogram),
        (!percentiles.is_empty()).then_some(percentile_plot),
    ];
    Section {
        title: file_name(&model.model),
        plots: plots.into_iter().flatten().collect(),
        ..Section::default()
    }
}
