//! Changes of a model by tensor and by type, for the text output and the report.

use std::fmt;

use indexmap::IndexMap;
use quantize::{Decision, Quantized, Reason};
use schemas::gguf::DType;
use schemas::report::{DecidedBy, TensorChange, TypeChange};

use crate::output;

/// Returns the change of every tensor, in output order.
pub(super) fn tensors(decisions: &[Decision]) -> Vec<TensorChange> {
    decisions.iter().map(tensor).collect()
}

fn tensor(decision: &Decision) -> TensorChange {
    let pattern = match &decision.by {
        Reason::Rule(pattern) => Some(pattern.clone()),
        _ => None,
    };
    TensorChange {
        name: decision.tensor.clone(),
        shape: decision.shape.clone(),
        from: decision.from.to_string(),
        to: decision.to.to_string(),
        size_before_bytes: decision.from_bytes,
        size_after_bytes: decision.to_bytes,
        decided_by: match &decision.by {
            Reason::Kept => DecidedBy::Kept,
            Reason::Role => DecidedBy::Role,
            Reason::Rule(_) => DecidedBy::Rule,
            Reason::Mtp => DecidedBy::MtpType,
            Reason::Pure => DecidedBy::Pure,
            Reason::Mix => DecidedBy::Mix,
        },
        pattern,
        fallback_from: decision.unfit.map(|unfit| unfit.to_string()),
        lacks_importance: decision.lacks_importance,
    }
}

/// Sums the changes by output type, the largest share first. Before the file is written, speeds and
/// errors are missing.
pub(super) fn types(quantized: &Quantized) -> Vec<TypeChange> {
    let mut groups: IndexMap<DType, Sums> = IndexMap::new();
    for (decision, measure) in quantized.decisions.iter().zip(&quantized.measures) {
        let sums = groups.entry(decision.to).or_default();
        sums.n_tensors += 1;
        sums.before += decision.from_bytes;
        sums.after += decision.to_bytes;
        let Some(measure) = measure else { continue };
        sums.n_recoded += 1;
        if let Some((squared, n)) = measure.squared_error() {
            sums.n_measured += 1;
            sums.squared += squared;
            sums.n_elements += n;
            sums.recoded += decision.from_bytes;
            sums.busy_s += measure.busy().as_secs_f64();
        }
    }
    let mut types: Vec<TypeChange> = groups
        .into_iter()
        .map(|(dtype, sums)| TypeChange {
            dtype: dtype.to_string(),
            n_tensors: sums.n_tensors,
            size_before_bytes: sums.before,
            size_after_bytes: sums.after,
            mb_per_worker_s: (sums.busy_s > 0.0).then(|| sums.recoded as f64 / 1e6 / sums.busy_s),
            rmse: (sums.n_measured > 0 && sums.n_measured == sums.n_recoded)
                .then(|| (sums.squared / sums.n_elements.max(1) as f64).sqrt()),
        })
        .collect();
    types.sort_by_key(|change| std::cmp::Reverse(change.size_after_bytes));
    types
}

/// Sums over the tensors of one type.
#[derive(Default)]
struct Sums {
    n_tensors: u64,
    before: u64,
    after: u64,
    /// Number of tensors that change their type.
    n_recoded: u64,
    /// Number of changed tensors that were read completely, so that their error is known.
    n_measured: u64,
    squared: f64,
    n_elements: u64,
    recoded: u64,
    busy_s: f64,
}

/// A text table; each column is as wide as its widest cell.
pub(super) struct Table {
    /// Columns; the first cell is the title.
    columns: Vec<(Align, Vec<String>)>,
}

#[derive(Clone, Copy)]
enum Align {
    Left,
    Right,
}

impl Table {
    /// Builds a table with one row per tensor, including the rule that decided its type.
    pub(super) fn of_tensors(tensors: &[TensorChange]) -> Table {
        Table {
            columns: vec![
                column(tensors, Align::Left, "tensor", |t| t.name.clone()),
                column(tensors, Align::Left, "shape", |t| shape(&t.shape)),
                column(tensors, Align::Left, "from", |t| t.from.clone()),
                column(tensors, Align::Left, "to", |t| t.to.clone()),
                column(tensors, Align::Right, "before", |t| {
                    output::bytes(t.size_before_bytes)
                }),
                column(tensors, Align::Right, "after", |t| {
                    output::bytes(t.size_after_bytes)
                }),
                column(tensors, Align::Left, "decided by", note),
            ],
        }
    }

    /// Builds a table with one row per type, with speed and error if measured.
    pub(super) fn of_types(types: &[TypeChange]) -> Table {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let mut columns = vec![
            column(types, Align::Left, "type", |t| t.dtype.clone()),
            column(types, Align::Right, "tensors", |t| t.n_tensors.to_string()),
            column(types, Align::Right, "before", |t| {
                output::bytes(t.size_before_bytes)
            }),
            column(types, Align::Right, "after", |t| {
                output::bytes(t.size_after_bytes)
            }),
        ];
        if types.iter().any(|change| change.rmse.is_some()) {
            columns.push(column(types, Align::Right, "MB/s/worker", |t| {
                or_dash(t.mb_per_worker_s.map(|speed| format!("{speed:.0}")))
            }));
            columns.push(column(types, Align::Right, "RMSE", |t| {
                or_dash(t.rmse.map(|error| format!("{error:.3e}")))
            }));
        }
        Table { columns }
    }
}

fn column<T>(
    rows: &[T],
    align: Align,
    title: &str,
    cell: impl Fn(&T) -> String,
) -> (Align, Vec<String>) {
    let title = std::iter::once(title.to_owned());
    (align, title.chain(rows.iter().map(cell)).collect())
}

fn shape(shape: &[u64]) -> String {
    let axes: Vec<String> = shape.iter().map(u64::to_string).collect();
    axes.join(" x ")
}

fn note(tensor: &TensorChange) -> String {
    let mut note = match tensor.decided_by {
        DecidedBy::Kept => "kept".to_owned(),
        DecidedBy::Role => "flag".to_owned(),
        DecidedBy::Rule => format!("rule {}", tensor.pattern.as_deref().unwrap_or_default()),
        DecidedBy::MtpType => "MTP type".to_owned(),
        DecidedBy::Pure => "pure".to_owned(),
        DecidedBy::Mix => "mix".to_owned(),
    };
    if let Some(unfit) = &tensor.fallback_from {
        note.push_str(&format!(", fallback from {unfit}"));
    }
    if tensor.lacks_importance {
        note.push_str(", not in the importance matrix");
    }
    note
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |cells: &[String]| cells.iter().map(|c| c.chars().count()).max();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .map(|(_, cells)| width(cells).unwrap_or(0))
            .collect();
        let n_rows = self.columns.first().map_or(0, |(_, cells)| cells.len());
        for row in 0..n_rows {
            let mut line = String::new();
            for ((align, cells), &width) in self.columns.iter().zip(&widths) {
                let cell = &cells[row];
                line.push_str(&match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                });
            }
            let end = if row + 1 < n_rows { "\n" } else { "" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}
