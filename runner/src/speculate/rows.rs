//! [`Rows`]: the output rows of a target pass: logits, or only the most likely token of each row
//! where nothing else is needed, which avoids copying all logits to the host.

use kernels::backend::{Backend, Largest};

use crate::batch::Batch;
use crate::context::Context;
use crate::sample::{Checked, Draw, SampleError, Sampler};

use super::{Proof, TextConfig};

/// The output that sampling needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All logits.
    Logits,
    /// The largest logit and its token.
    Likeliest,
}

impl Wanted {
    /// Returns the output that one of these texts needs.
    pub(super) fn of<'a>(texts: impl IntoIterator<Item = &'a TextConfig>) -> Wanted {
        let needs_logits = |text: &TextConfig| {
            !text.sampler.is_greedy() || text.proof != Proof::None || text.logits
        };
        match texts.into_iter().any(needs_logits) {
            true => Wanted::Logits,
            false => Wanted::Likeliest,
        }
    }

    /// Runs a batch and copies the required output to the host.
    pub(super) fn run<B: Backend>(self, target: &mut Context<B>, batch: &Batch) {
        target.run(batch, None);
        match self {
            Wanted::Logits => _ = target.download_logits(),
            Wanted::Likeliest => _ = target.download_likeliest(),
        }
    }

    /// Returns the output rows of the last pass.
    pub(super) fn rows<B: Backend>(self, target: &Context<B>) -> Rows<'_> {
        Rows {
            n_vocab: target.model().hparams.n_vocab as usize,
            of: match self {
                Wanted::Logits => Of::Logits(target.logits()),
                Wanted::Likeliest => Of::Likeliest(target.likeliest()),
            },
        }
    }
}

/// Output rows of a pass.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    n_vocab: usize,
    of: Of<'a>,
}

#[derive(Clone, Copy)]
enum Of<'a> {
    /// (n, n_vocab)
    Logits(&'a [f32]),
    /// (n)
    Likeliest(&'a [Largest]),
}

impl<'a> Rows<'a> {
    /// Splits into the first `n` rows and the rest.
    pub(super) fn split_at(self, n: usize) -> (Rows<'a>, Rows<'a>) {
        let n_vocab = self.n_vocab;
        let (first, rest) = match self.of {
            Of::Logits(all) => {
                let (first, rest) = all.split_at(n * n_vocab);
                (Of::Logits(first), Of::Logits(rest))
            }
            Of::Likeliest(all) => {
                let (first, rest) = all.split_at(n);
                (Of::Likeliest(first), Of::Likeliest(rest))
            }
        };
        let rows = |of| Rows { n_vocab, of };
        (rows(first), rows(rest))
    }

    /// Returns the logits of a row, if they were copied to the host.
    pub(super) fn logits(self, row: usize) -> Option<&'a [f32]> {
        match self.of {
            Of::Logits(all) => Some(&all[row * self.n_vocab..][..self.n_vocab]),
            Of::Likeliest(_) => None,
        }
    }

    /// Chooses the token of a row with a sampler.
    pub(super) fn sample(
        self,
        row: usize,
        sampler: &Sampler,
        draw: Draw,
    ) -> Result<u32, SampleError> {
        match self.of {
            Of::Logits(_) => {
                let logits = self.logits(row);
                sampler.sample(logits.expect("rows of logits"), draw)
            }
            // Only a greedy sampler uses `Likeliest`.
            Of::Likeliest(all) => all[row].checked(self.n_vocab).map(|(token, _)| token),
        }
    }
}
