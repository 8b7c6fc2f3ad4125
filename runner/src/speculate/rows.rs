//! [`Rows`]: what a target pass says of the places whose tokens are to be chosen: logits, or where
//! nothing else is wanted the likeliest token alone, which need not take all logits to the host.

use kernels::backend::{Backend, Largest};

use crate::batch::Batch;
use crate::context::Context;
use crate::sample::{Checked, Draw, SampleError, Sampler};

use super::{DecodeConfig, Proof};

/// What tokens are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All logits.
    Logits,
    /// The largest.
    Likeliest,
}

impl Wanted {
    pub(super) fn of(config: &DecodeConfig<'_>) -> Wanted {
        match config.sampler.is_greedy() && config.proof == Proof::None {
            true => Wanted::Likeliest,
            false => Wanted::Logits,
        }
    }

    /// Runs a batch, and takes to the host what is wanted of it.
    pub(super) fn run<B: Backend>(self, target: &mut Context<B>, batch: &Batch) {
        target.run(batch, None);
        match self {
            Wanted::Logits => _ = target.download_logits(),
            Wanted::Likeliest => _ = target.download_likeliest(),
        }
    }

    /// What that was.
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

/// Some rows of a pass.
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
    /// The first `n`, and the others.
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

    /// The logits of one, if they are here.
    pub(super) fn logits(self, row: usize) -> Option<&'a [f32]> {
        match self.of {
            Of::Logits(all) => Some(&all[row * self.n_vocab..][..self.n_vocab]),
            Of::Likeliest(_) => None,
        }
    }

    /// The token that a sampler chooses.
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
            // Only a sampler that takes the likeliest wants these.
            Of::Likeliest(all) => all[row].checked(self.n_vocab).map(|(token, _)| token),
        }
    }
}
