//! The acceptance surface in reports: sentences, checks and heat maps.

use schemas::report::{SurfaceBreakEven, SurfaceCell, SurfaceReport, VerifyReport};

use super::cases::Case;
use crate::specrun::page::html::{Plot, Section};
use crate::specrun::page::number;
use crate::specrun::page::plot::{Axes, Field, heat_map};

/// True if a cell belongs to a speculator at a temperature.
pub(super) fn is_of(cell: &SurfaceCell, even: &SurfaceBreakEven) -> bool {
    cell.speculator == even.speculator && cell.temperature == even.temperature
}

/// States the context length at which drafts stop or start to save time.
pub(super) fn break_even(even: &SurfaceBreakEven) -> String {
    match (even.n_context, even.speedups) {
        (Some(n), _) => format!("break-even at a context of about {n:.0} tokens"),
        (None, Some([min, _])) if min >= 1.0 => "drafts save time at all lengths".to_owned(),
        (None, Some(_)) => "drafts save no time at any length".to_owned(),
        (None, None) => "no speed was measured".to_owned(),
    }
}

/// One check for each cell of all tasks: the texts are those without drafts.
pub(super) fn cases(report: &VerifyReport) -> Vec<Case> {
    let cells = report.surface.iter().flat_map(|surface| &surface.cells);
    let cells = cells.filter(|cell| cell.task.is_none());
    cells
        .map(|cell| {
            let found = format!(
                "{} of {} texts identical, acceptance {}, speedup {}",
                cell.n_identical,
                cell.n_texts,
                number(cell.acceptance, 3),
                number(cell.speedup, 2)
            );
            Case {
                stage: "surface",
                name: format!(
                    "{}, context of {} tokens, temperature {}",
                    cell.speculator, cell.n_context, cell.temperature
                ),
                failure: (cell.n_identical < cell.n_texts).then(|| found.clone()),
                skipped: cell.acceptance.is_none(),
                found,
            }
        })
        .collect()
}

/// Heat maps of acceptance and speedup, for each speculator and temperature.
pub(super) fn section(report: &VerifyReport) -> Section {
    let Some(surface) = &report.surface else {
        return Section::default();
    };
    let plots = surface.break_even.iter();
    Section {
        title: "Acceptance surface".to_owned(),
        note: format!(
            "Over context length, task and temperature, medians of {} runs. Every prompt is the end of a context that \
             is filled with other text.",
            surface.n_runs
        ),
        plots: plots.flat_map(|even| plots_of(surface, even)).collect(),
        ..Section::default()
    }
}

fn plots_of(surface: &SurfaceReport, even: &SurfaceBreakEven) -> [Plot; 2] {
    let own = surface.cells.iter().filter(|cell| is_of(cell, even));
    let own: Vec<&SurfaceCell> = own.collect();
    let mut tasks: Vec<Option<&String>> = Vec::new();
    for cell in &own {
        if !tasks.contains(&cell.task.as_ref()) {
            tasks.push(cell.task.as_ref());
        }
    }
    let rows: Vec<String> = tasks
        .iter()
        .map(|task| task.map_or("all tasks".to_owned(), |task| task.to_owned()))
        .collect();
    let columns: Vec<String> = surface.contexts.iter().map(|&n| length(n)).collect();
    let cell = |i: usize, j: usize| {
        let n_context = surface.contexts[i];
        own.iter()
            .find(|cell| cell.n_context == n_context && cell.task.as_ref() == tasks[j])
    };
    let axes = |up| Axes {
        across: "context, tokens",
        up,
        top: None,
        line: None,
    };
    let subject = format!("{}, temperature {}", even.speculator, even.temperature);
    let acceptance = heat_map(&axes("acceptance by task"), &columns, &rows, |i, j| {
        let cell = cell(i, j)?;
        let rate = cell.acceptance?;
        Some(Field {
            text: format!("{rate:.2}"),
            heat: rate,
            class: "bar",
            note: format!("{} of {}", cell.n_accepted, cell.n_drafted),
        })
    });
    let speedup = heat_map(&axes("speedup by task"), &columns, &rows, |i, j| {
        let cell = cell(i, j)?;
        let speedup = cell.speedup?;
        Some(Field {
            text: format!("{speedup:.2}"),
            heat: speedup.ln().abs(),
            class: if speedup < 1.0 { "loss" } else { "gain" },
            note: format!(
                "{} tokens/s, {} without drafts",
                number(cell.tokens_per_s, 1),
                number(cell.plain_tokens_per_s, 1)
            ),
        })
    });
    let even = break_even(even);
    [
        Plot {
            title: format!("Acceptance: {subject}"),
            svg: acceptance,
            note: "Accepted of drafted tokens.".to_owned(),
        },
        Plot {
            title: format!("Speedup: {subject}"),
            svg: speedup,
            note: format!("{}{}.", even[..1].to_uppercase(), &even[1..]),
        },
    ]
}

/// Formats a context length as users give it.
fn length(n: u64) -> String {
    match n >= 1024 && n.is_multiple_of(1024) {
        true => format!("{}k", n / 1024),
        false => n.to_string(),
    }
}
