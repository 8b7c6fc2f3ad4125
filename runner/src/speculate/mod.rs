//! Speculative decoding. A speculator proposes the next tokens of each sequence; the target
//! verifies all of them in one forward pass. Each speculator has a file and an entry in the list in
//! `drafters`.
//!
//! Only the driver changes the target's caches. A speculator with its own context keeps it in sync:
//! it sees every batch that the target ran and is notified of the accepted tokens.

pub mod accept;
mod assistant_draft;
mod block_draft;
mod draft_config;
pub mod draft_length;
mod draft_sampling;
mod drafters;
mod driver;
mod hidden_rows;
mod hidden_state_draft;
mod known_text;
pub mod latency_model;
mod lazy_draft_context;
pub mod lookup;
mod model_draft;
mod ngram_map;
mod output_rows;
#[cfg(test)]
mod replay;
mod request;
mod sequences;
mod spec;
mod speculator_set;

use kernels::backend::Backend;

use crate::batch::{Batch, SeqId};
use crate::context::Context;
use crate::error::Error;
use crate::sample::Distribution;

pub use assistant_draft::AssistantDraft;
pub(crate) use assistant_draft::AssistantStates;
pub use block_draft::BlockDrafter;
pub(crate) use block_draft::Features;
pub use draft_config::{DraftConfig, DraftLength, NgramConfig};
pub use draft_sampling::{DraftSampling, Verification};
pub use drafters::*;
pub use driver::{Driver, SpeculatorSeconds};
pub use hidden_state_draft::HiddenStateDraft;
pub(crate) use hidden_state_draft::States;
pub use known_text::{DraftedText, KnownText};
pub use lookup::LookupFiles;
pub use model_draft::DraftLimits;
pub use ngram_map::{NgramMapConfig, NgramMaps, Values};
pub use request::{
    Choice, Completion, DecodeConfig, PromptLogits, Proof, Request, RoundEvent, Stop, TextConfig,
    TokenEvent,
};
pub use spec::{DraftKind, ModelSpec, Spec};
pub(crate) use spec::{DraftParts, Parts};
pub use speculator_set::Failure;

/// The choice between drafts of several speculators for one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The first speculator that drafts; later ones are not asked.
    #[default]
    First,
    /// The draft with the most expected accepted tokens, by the acceptance rate of its speculator
    /// at each position; all speculators are asked.
    Best,
}

impl Policy {
    /// Names used on the command line.
    pub const NAMES: [(&str, Policy); 2] = [("first", Policy::First), ("best", Policy::Best)];

    /// Returns the name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::First => "first",
            Policy::Best => "best",
        }
    }
}

/// Result of a target pass, as speculators see it.
pub struct TargetPass<'a, B: Backend> {
    /// The tokens.
    pub batch: &'a Batch,
    /// Hidden states that MTP heads read, (n, hidden_width).
    pub hidden: &'a B::Buffer,
    /// Inputs of the tapped layers, concatenated, (n, n_tap * n_embd).
    pub features: &'a B::Buffer,
    /// The tapped layers.
    pub taps: &'a [u32],
}

/// A request for a draft of one sequence.
#[derive(Clone, Debug)]
pub struct DraftRequest<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens in the target's caches.
    pub history: &'a [u32],
    /// The newest token, not yet in the caches: position `history.len()`.
    pub last: u32,
    /// Maximum draft length.
    pub n_max: usize,
    /// The choice of tokens by a draft model.
    pub sampling: DraftSampling,
    /// The draft, empty on entry: tokens for the positions after `last`.
    pub draft: Vec<u32>,
    /// The distribution of each drafted token, under [`Verification::Reject`]; else empty.
    pub distributions: Vec<Distribution>,
}

/// Result of verifying one sequence in a target pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The sequence.
    pub seq: SeqId,
    /// The speculator whose draft was verified; `None` without a draft.
    pub by: Option<SpecType>,
    /// Accepted tokens of the draft.
    pub n_accepted: usize,
    /// Length of the sequence in the target's caches after the pass.
    pub len: u32,
}

/// A drafter, for all sequences of a context at once. One without a context of its own implements
/// only what it needs of the notifications.
pub trait Speculator<B: Backend> {
    /// Returns the kind of speculation.
    fn kind(&self) -> SpecType;

    /// Returns the maximum draft length for one sequence.
    fn n_max(&self) -> usize;

    /// Starts at the end of a prompt that is in the target's caches and was passed to
    /// [`Speculator::process`]: a new text, or one that was rolled back.
    fn begin(&mut self, _seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    /// Processes a batch that the target ran: a prompt, plain decoding, or the verification of a
    /// draft.
    fn process(&mut self, _pass: &TargetPass<'_, B>) -> Result<(), Error> {
        Ok(())
    }

    /// Fills in the drafts; an empty draft means no proposal.
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error>;

    /// Fills in the drafts of a speculator that attends to the keys and values in the target's caches. Others do
    /// not need the target.
    fn draft_beside(
        &mut self,
        _target: &mut Context<B>,
        requests: &mut [DraftRequest<'_>],
    ) -> Result<(), Error> {
        self.draft(requests)
    }

    /// Called after a sequence's pass was verified, for the draft of any speculator. Positions from
    /// `len` on are dropped.
    fn accept(&mut self, _committed: Committed) -> Result<(), Error> {
        Ok(())
    }

    /// Rolls a sequence back to its first `len` tokens on request of the caller. Returns how many
    /// of them this speculator does not have to process again; the target reruns the others.
    /// [`Speculator::begin`] follows at the position where decoding continues.
    fn truncate(&mut self, _seq: SeqId, len: u32) -> Result<u32, Error> {
        Ok(len)
    }

    /// Replaces a sequence by a copy of the first `len` tokens of another. Returns how many of them
    /// this speculator does not have to process, as [`Speculator::truncate`] does.
    fn share(&mut self, _from: SeqId, _to: SeqId, len: u32) -> Result<u32, Error> {
        Ok(len)
    }
}
