//! Speculative decoding. A speculator proposes the next tokens of each sequence; the target
//! verifies all of them in one forward pass. Each speculator has its own file and an entry in
//! [`SpecType::ALL`]; docs/adding.md describes how to add one.
//!
//! Only the driver changes the target's caches. A speculator with its own context keeps it in sync:
//! it sees every batch that the target ran and is notified of the accepted tokens.

pub mod accept;
mod chain;
pub mod cost;
mod draft_model;
mod drafters;
mod drafting;
mod driver;
mod eagle3;
mod guess;
mod hidden_state_draft;
pub mod lookup;
mod mtp;
mod ngram_cache;
mod ngram_map;
mod ngram_mod;
mod ngram_simple;
pub mod pace;
mod reader;
#[cfg(test)]
mod replay;
mod request;
mod rows;
mod sequences;
mod translated;

use kernels::backend::Backend;

use crate::batch::{Batch, SeqId};
use crate::error::Error;
use crate::sample::Distribution;

pub use chain::ChainConfig;
pub use draft_model::DraftModel;
pub use drafters::Failure;
pub use drafting::{Drafting, Lengths, NgramConfig};
pub use driver::{DrafterSeconds, Driver};
pub use eagle3::Eagle3;
pub use guess::{Guessing, Verification};
pub(crate) use hidden_state_draft::States;
pub use mtp::Mtp;
pub use ngram_cache::{LookupFiles, NgramCache};
pub use ngram_map::{NgramMapConfig, NgramMaps, Values};
pub use ngram_mod::{NgramMod, NgramModConfig};
pub use ngram_simple::NgramSimple;
pub use request::{
    Choice, Completion, DecodeConfig, PromptLogits, Proof, Request, RoundEvent, Stop, TextConfig,
    TokenEvent,
};
pub use translated::TranslatedDraft;

/// The kinds of speculation, named as in llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecType {
    /// The target's MTP head, inline or in a separate file.
    DraftMtp,
    /// A smaller model with the same vocabulary.
    DraftSimple,
    /// An EAGLE-3 draft, which reads hidden states of the target.
    DraftEagle3,
    /// The continuation of the last occurrence of the newest tokens.
    NgramSimple,
    /// As `NgramSimple`, with an index; a draft is limited to what was accepted of the key's last
    /// draft.
    NgramMapK,
    /// As `NgramMapK`, but drafts only if one continuation dominates.
    NgramMapK4v,
    /// Token by token from one hash table that all sequences share.
    NgramMod,
    /// Token by token: the most frequent continuation in this text and in lookup files.
    NgramCache,
}

impl SpecType {
    /// All kinds, in the order in which llama.cpp asks them. We ask them in the order the user
    /// gives.
    pub const ALL: [SpecType; 8] = [
        SpecType::NgramSimple,
        SpecType::NgramMapK,
        SpecType::NgramMapK4v,
        SpecType::NgramMod,
        SpecType::NgramCache,
        SpecType::DraftSimple,
        SpecType::DraftEagle3,
        SpecType::DraftMtp,
    ];

    /// Returns the name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SpecType::DraftMtp => "draft-mtp",
            SpecType::DraftSimple => "draft-simple",
            SpecType::DraftEagle3 => "draft-eagle3",
            SpecType::NgramSimple => "ngram-simple",
            SpecType::NgramMapK => "ngram-map-k",
            SpecType::NgramMapK4v => "ngram-map-k4v",
            SpecType::NgramMod => "ngram-mod",
            SpecType::NgramCache => "ngram-cache",
        }
    }

    /// Returns the kind with this name.
    ///
    /// # Errors
    /// No kind has this name; the error lists the known names.
    pub fn by_name(name: &str) -> Result<SpecType, Error> {
        SpecType::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| {
                let known = SpecType::ALL.map(SpecType::name).join(", ");
                Error::UnknownSpeculator {
                    found: name.to_owned(),
                    known,
                }
            })
    }
}

/// Returns the initial size in bytes of a speculator's tables.
pub fn table_bytes(kind: SpecType, n_seq: usize, files: &LookupFiles) -> u64 {
    let n = match kind {
        SpecType::NgramMod => ngram_mod::TABLE_BYTES,
        SpecType::NgramMapK | SpecType::NgramMapK4v => n_seq * ngram_map::TABLE_BYTES,
        SpecType::NgramCache => files.fixed.n_bytes() + files.dynamic.n_bytes(),
        SpecType::NgramSimple
        | SpecType::DraftMtp
        | SpecType::DraftSimple
        | SpecType::DraftEagle3 => 0,
    };
    n as u64
}

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
    /// Hidden states after the final norm, (n, n_embd).
    pub hidden: &'a B::Buffer,
    /// Inputs of the tapped layers, concatenated, (n, n_tap * n_embd).
    pub features: &'a B::Buffer,
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
    pub guessing: Guessing,
    /// The draft, empty on entry: tokens for the positions after `last`.
    pub draft: Vec<u32>,
    /// The distribution each drafted token was drawn from, under [`Verification::Redraw`]; empty if
    /// the draft was not drawn.
    pub guesses: Vec<Distribution>,
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

/// A drafter, for all sequences of a context at once.
pub trait Speculator<B: Backend> {
    /// Returns the kind of speculation.
    fn kind(&self) -> SpecType;

    /// Returns the maximum draft length for one sequence.
    fn n_max(&self) -> usize;

    /// Starts at the end of a prompt that is in the target's caches and was passed to
    /// [`Speculator::process`]: a new text, or one that was rolled back.
    fn begin(&mut self, seq: SeqId, prompt: &[u32]) -> Result<(), Error>;

    /// Processes a batch that the target ran: a prompt, plain decoding, or the verification of a
    /// draft.
    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error>;

    /// Fills in the drafts; an empty draft means no proposal.
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error>;

    /// Called after a sequence's pass was verified, for the draft of any speculator. Positions from
    /// `len` on are dropped.
    fn accept(&mut self, committed: Committed) -> Result<(), Error>;

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
