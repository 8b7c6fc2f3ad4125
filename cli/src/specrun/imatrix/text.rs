//! Text output of `specrun imatrix`.

use std::fmt::{self, Display};

use schemas::report::{ImatrixEntryReport, ImatrixReport};

use crate::output;

/// The result of a run that wrote a file.
pub(super) struct Written<'a>(pub(super) &'a ImatrixReport);

impl Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        write!(
            f,
            "wrote {}: {}, {} of {} tokens",
            r.path.as_deref().unwrap_or_default(),
            entries(r),
            output::count(r.n_chunks.into(), "chunk"),
            r.n_ctx
        )?;
        if let Some(perplexity) = &r.perplexity {
            let (value, error) = (perplexity.value, perplexity.standard_error);
            write!(f, "\nperplexity {value:.4} +/- {error:.4}")?;
        }
        unused(f, &r.entries)
    }
}

fn entries(report: &ImatrixReport) -> String {
    match report.entries.len() {
        1 => "1 entry".to_owned(),
        n => format!("{n} entries"),
    }
}

/// Lists the experts without rows, once for consecutive tensors with the same ones.
fn unused(f: &mut fmt::Formatter<'_>, entries: &[ImatrixEntryReport]) -> fmt::Result {
    let with_unused = entries
        .iter()
        .filter(|entry| !entry.unused_experts.is_empty());
    let with_unused: Vec<&ImatrixEntryReport> = with_unused.collect();
    for same in with_unused.chunk_by(|a, b| a.unused_experts == b.unused_experts) {
        let [first, others @ ..] = same else { continue };
        let experts: Vec<String> = first.unused_experts.iter().map(usize::to_string).collect();
        write!(f, "\n{}", first.tensor)?;
        if !others.is_empty() {
            write!(f, " and {} more", others.len())?;
        }
        write!(
            f,
            ": no token used experts {} of {}",
            experts.join(", "),
            first.counts.len()
        )?;
    }
    Ok(())
}

/// The statistics of a file, with llama-imatrix's names.
pub(super) struct Statistics<'a>(pub(super) &'a ImatrixReport);

impl Display for Statistics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let names = r.entries.iter().map(|entry| entry.tensor.len());
        let width = names.max().unwrap_or_default().max(6);
        write!(
            f,
            "{}, {} of {} tokens\n\n",
            entries(r),
            output::count(r.n_chunks.into(), "chunk"),
            r.n_ctx
        )?;
        write!(
            f,
            "{:<width$} {:>14} {:>8} {:>10} {:>10} {:>10} {:>10} {:>8} {:>10} {:>7} {:>7} {:>10}",
            "tensor",
            "Σ E[A²]",
            "gain",
            "mean",
            "std dev",
            "skewness",
            "kurtosis",
            "H norm",
            "L2 dist",
            "cos",
            "PCC",
            "cov"
        )?;
        let mut sorted: Vec<&ImatrixEntryReport> = r.entries.iter().collect();
        sorted.sort_by_key(|entry| layer(&entry.tensor));
        for entry in sorted {
            write!(f, "\n{:<width$}", entry.tensor)?;
            let Some(s) = &entry.statistics else {
                write!(f, " no rows")?;
                continue;
            };
            write!(
                f,
                " {:>14.4} {:>8} {:>10.4} {:>10.4} {:>10.4} {:>10.4} {:>8} {:>10} {:>7} {:>7} {:>10}",
                s.sum_sq,
                optional(s.gain, 2),
                s.mean,
                s.std_deviation,
                s.skewness,
                s.kurtosis,
                optional(s.h_norm, 2),
                optional(s.l2_dist, 4),
                optional(s.cossim, 4),
                optional(s.pearson, 4),
                optional(s.covariance, 4)
            )?;
        }
        write!(
            f,
            "\n\n{:<width$} {:>14} {:>8} {:>10} {:>7} {:>7} {:>10}",
            "layer", "Σ E[A²]", "gain", "L2 dist", "cos", "PCC", "cov"
        )?;
        for l in &r.layers {
            let name = match l.is_head {
                true => format!("{} (MTP)", l.layer),
                false => l.layer.to_string(),
            };
            write!(
                f,
                "\n{name:<width$} {:>14.4} {:>8} {:>10} {:>7} {:>7} {:>10}",
                l.sum_sq,
                optional(l.gain, 2),
                optional(l.l2_dist, 4),
                optional(l.cossim, 4),
                optional(l.pearson, 4),
                optional(l.covariance, 4)
            )?;
        }
        unused(f, &r.entries)
    }
}

/// Returns the layer of a tensor; tensors without one come last.
fn layer(tensor: &str) -> u32 {
    let number = tensor
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next());
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or(u32::MAX)
}

fn optional(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}
