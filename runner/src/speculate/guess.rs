//! How a draft's model chooses its guesses where the target draws its tokens.

use crate::sample::{Distribution, Draw, SampleError, Sampler};

/// How the target's token is chosen where a draft has guessed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// As without drafts; a guess that is the same stands. The text is that of plain decoding.
    /// Models guess with the target's own noise, so they are often right.
    #[default]
    Match,
    /// By rejection sampling: a guess stands with probability min(1, p / q). Texts are distributed
    /// as those of plain decoding, and a little more is accepted, but each is another text.
    Redraw,
}

impl Verification {
    /// Names that users give.
    pub const NAMES: [(&str, Verification); 2] = [
        ("match", Verification::Match),
        ("reject", Verification::Redraw),
    ];
}

/// How guesses are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Guessing {
    /// The likeliest token.
    Likeliest,
    /// Drawn as the target draws.
    Drawn {
        /// The target's.
        sampler: Sampler,
        /// The text's.
        stream: u64,
        /// What becomes of them.
        verification: Verification,
    },
}

impl Guessing {
    /// The guess for a position, from a row of logits whose tokens `token` names, and under
    /// [`Verification::Redraw`] what it was drawn from.
    pub(crate) fn guess(
        self,
        logits: &[f32],
        position: u64,
        token: impl Fn(u32) -> u32,
    ) -> Result<(u32, Option<Distribution>), SampleError> {
        let Guessing::Drawn {
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
            Verification::Redraw => {
                let guesses = sampler.distribution(logits)?.renamed(token);
                Ok((sampler.guess(&guesses, draw), Some(guesses)))
            }
        }
    }
}
