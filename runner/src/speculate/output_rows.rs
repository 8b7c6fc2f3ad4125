//! [`OutputRows`]: the output rows of a target pass: logits, or only the most likely token of each row
//! where nothing else is needed, which avoids copying all logits to the host.

use kernels::backend::{Backend, Largest};

use crate::batch::Batch;
use crate::context::Context;
use crate::sample::{Checked, Draw, SampleError, Sampler};

use super::{Proof, TextConfig};

/// The output that sampling needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputKind {
    /// All logits.
    Logits,
    /// The largest logit and its token.
    Likeliest,
}

impl OutputKind {
    /// Returns the output that one of these texts needs.
    pub(super) fn of<'a>(texts: impl IntoIterator<Item = &'a TextConfig>) -> OutputKind {
        let needs_logits = |text: &TextConfig| {
            !text.sampler.is_greedy()
                || text.proof != Proof::None
                || text.logits
                || text.prompt_logits
        };
        match texts.into_iter().any(needs_logits) {
            true => OutputKind::Logits,
            false => OutputKind::Likeliest,
        }
    }

    /// Runs a batch and copies the required output to the host.
    pub(super) fn run<B: Backend>(self, target: &mut Context<B>, batch: &Batch) {
        target.run(batch, None);
        match self {
            OutputKind::Logits => _ = target.download_logits(),
            OutputKind::Likeliest => _ = target.download_likeliest(),
        }
    }

    /// Returns the output rows of the last pass.
    pub(super) fn rows<B: Backend>(self, target: &Context<B>) -> OutputRows<'_> {
        OutputRows {
            n_vocab: target.model().hparams.n_vocab as usize,
            data: match self {
                OutputKind::Logits => RowData::Logits(target.logits()),
                OutputKind::Likeliest => RowData::Likeliest(target.likeliest()),
            },
        }
    }
}

/// Output rows of a pass.
#[derive(Clone, Copy)]
pub(super) struct OutputRows<'a> {
    n_vocab: usize,
    data: RowData<'a>,
}

#[derive(Clone, Copy)]
enum RowData<'a> {
    /// (n, n_vocab)
    Logits(&'a [f32]),
    /// (n)
    Likeliest(&'a [Largest]),
}

impl<'a> OutputRows<'a> {
    /// Splits into the first `n` rows and the rest.
    pub(super) fn split_at(self, n: usize) -> (OutputRows<'a>, OutputRows<'a>) {
        let n_vocab = self.n_vocab;
        let (first, rest) = match self.data {
            RowData::Logits(all) => {
                let (first, rest) = all.split_at(n * n_vocab);
                (RowData::Logits(first), RowData::Logits(rest))
            }
            RowData::Likeliest(all) => {
                let (first, rest) = all.split_at(n);
                (RowData::Likeliest(first), RowData::Likeliest(rest))
            }
        };
        let rows = |data| OutputRows { n_vocab, data };
        (rows(first), rows(rest))
    }

    /// Returns the logits of a row, if they were copied to the host.
    pub(super) fn logits(self, row: usize) -> Option<&'a [f32]> {
        match self.data {
            RowData::Logits(all) => Some(&all[row * self.n_vocab..][..self.n_vocab]),
            RowData::Likeliest(_) => None,
        }
    }

    /// Chooses the token of a row with a sampler.
    pub(super) fn sample(
        self,
        row: usize,
        sampler: &Sampler,
        draw: Draw,
    ) -> Result<u32, SampleError> {
        match self.data {
            RowData::Logits(_) => {
                let logits = self.logits(row);
                sampler.sample(logits.expect("rows of logits"), draw)
            }
            // Only a greedy sampler uses `Likeliest`.
            RowData::Likeliest(all) => all[row].checked(self.n_vocab).map(|(token, _)| token),
        }
    }
}
