//! [`DraftSampling`]: the choice of draft tokens, and [`Verification`] of them when the target samples.

use crate::sample::{Distribution, Draw, SampleError, Sampler};

/// The choice of the target's token at a drafted position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// Sampled as without drafts; a drafted token is accepted if it is the same. The text is that
    /// of plain decoding. Draft models sample with the target's own noise, which raises the
    /// acceptance rate.
    #[default]
    Match,
    /// By rejection sampling: a drafted token is accepted with probability min(1, p / q). Texts
    /// have the distribution of plain decoding and the acceptance rate is slightly higher, but each
    /// text differs from that of plain decoding.
    Reject,
}

impl Verification {
    /// Names used on the command line.
    pub const NAMES: [(&str, Verification); 2] = [
        ("match", Verification::Match),
        ("reject", Verification::Reject),
    ];
}

/// The choice of tokens by a draft model.
#[derive(Clone, Copy, Debug)]
pub enum DraftSampling {
    /// The most likely token.
    Greedy,
    /// Sampled as the target samples.
    Sampled {
        /// The target's sampler.
        sampler: Sampler,
        /// Random stream of the text.
        stream: u64,
        /// The verification that the target will use.
        verification: Verification,
    },
}

impl DraftSampling {
    /// Returns the drafted token for a position, from a row of logits; `token` maps a row index to
    /// a token id. Under [`Verification::Reject`] also returns the distribution it was drawn from.
    pub(crate) fn token(
        self,
        logits: &[f32],
        position: u64,
        token: impl Fn(u32) -> u32,
    ) -> Result<(u32, Option<Distribution>), SampleError> {
        let DraftSampling::Sampled {
            sampler,
            stream,
            verification,
        } = self
        else {
            let (row, _) = crate::sample::argmax(logits)?;
            return Ok((token(row), None));
        };
        let draw = Draw { stream, position };
        match verification {
            Verification::Match => {
                let row = sampler.sample_named(logits, draw, &token)?;
                Ok((token(row), None))
            }
            Verification::Reject => {
                let distribution = sampler.distribution(logits)?.renamed(token);
                Ok((sampler.draft(&distribution, draw), Some(distribution)))
            }
        }
    }
}
