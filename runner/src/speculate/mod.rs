//! Drafters. A speculator guesses the next tokens of sequences; the target checks them in one
//! pass. One file per speculator, one line in [`SpecType::ALL`]; docs/adding.md has the recipe.
//!
//! The driver alone touches the target's caches. A speculator with a context of its own keeps
//! that one in step: it sees every batch that the target ran, and hears what was accepted.

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
pub use request::{Choice, Completion, DecodeConfig, Proof, Request, RoundEvent, Stop, TokenEvent};
pub use translated::TranslatedDraft;

/// The kinds of speculation, by the peer's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecType {
    /// The MTP head of the target, inline or in a sidecar.
    DraftMtp,
    /// A smaller model with the same vocabulary.
    DraftSimple,
    /// An EAGLE-3 draft, which sees hidden states of the target.
    DraftEagle3,
    /// The continuation of the last occurrence of the newest tokens.
    NgramSimple,
    /// The same from an index, as long as the last such draft was right.
    NgramMapK,
    /// The same, only where one continuation stands out.
    NgramMapK4v,
    /// Token by token from one hashed table of all texts.
    NgramMod,
    /// Token by token by what mostly follows, here and in lookup files.
    NgramCache,
}

impl SpecType {
    /// All of them; the peer asks them in this order, we in the order the user gives.
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

    /// The name users give.
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

    /// The kind of that name.
    ///
    /// # Errors
    /// There is none; the error lists those there are.
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

/// Bytes of the tables that one of that kind begins with.
pub(crate) fn table_bytes(kind: SpecType, n_seq: usize, files: &LookupFiles) -> u64 {
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

/// Whose draft is checked, where several speculators have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// That of the first one in order; those behind it are not asked.
    #[default]
    First,
    /// The one of which most tokens are expected to be accepted, by how its speculator has fared at
    /// each place of its drafts so far; all are asked.
    Best,
}

impl Policy {
    /// Names that users give.
    pub const NAMES: [(&str, Policy); 2] = [("first", Policy::First), ("best", Policy::Best)];

    /// The name that users give.
    pub fn name(self) -> &'static str {
        match self {
            Policy::First => "first",
            Policy::Best => "best",
        }
    }
}

/// What a target pass computed, as speculators see it.
pub struct TargetPass<'a, B: Backend> {
    /// The tokens.
    pub batch: &'a Batch,
    /// Hidden states after the final norm, (n, n_embd).
    pub hidden: &'a B::Buffer,
    /// Inputs of the tapped layers, joined, (n, n_tap * n_embd).
    pub features: &'a B::Buffer,
}

/// One sequence that wants a draft.
#[derive(Clone, Debug)]
pub struct DraftRequest<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens in the target's caches.
    pub history: &'a [u32],
    /// The newest token, not yet in the caches: position `history.len()`.
    pub last: u32,
    /// Most tokens that can be used.
    pub n_max: usize,
    /// How a model's guesses are chosen.
    pub guessing: Guessing,
    /// The draft, empty on entry: guesses for the positions behind `last`.
    pub draft: Vec<u32>,
    /// What each guess was drawn from, under [`Verification::Redraw`]; empty for a draft that was
    /// not drawn.
    pub guesses: Vec<Distribution>,
}

/// What a check committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The sequence.
    pub seq: SeqId,
    /// Whose draft was checked; `None` without a draft.
    pub by: Option<SpecType>,
    /// Draft tokens the target agreed with.
    pub n_accepted: usize,
    /// Positions in the target's caches from now on.
    pub len: u32,
}

/// Guesses tokens, for all sequences of a context at once.
pub trait Speculator<B: Backend> {
    /// Its kind.
    fn kind(&self) -> SpecType;

    /// Most tokens it drafts for one sequence.
    fn n_max(&self) -> usize;

    /// A prompt is in the target's caches, and in [`Speculator::process`] before that: a new text,
    /// or one that was taken back.
    fn begin(&mut self, seq: SeqId, prompt: &[u32]) -> Result<(), Error>;

    /// The target ran a batch: prompt, plain decoding, or a draft check.
    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error>;

    /// Fills in the drafts; leaving one empty declines.
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error>;

    /// A sequence's pass was verified, whoever's draft it was. Positions from `len` on are
    /// forgotten.
    fn accept(&mut self, committed: Committed) -> Result<(), Error>;

    /// From outside a sequence is taken back to its first `len` tokens. Returns how many of them this
    /// one need not see again; the target runs the others once more. Where the text goes on
    /// [`Speculator::begin`] tells.
    fn truncate(&mut self, _seq: SeqId, len: u32) -> Result<u32, Error> {
        Ok(len)
    }

    /// A sequence becomes the beginning of another, `len` tokens of it, whatever it was. Returns how
    /// many of them this one need not see, as [`Speculator::truncate`] does.
    fn share(&mut self, _from: SeqId, _to: SeqId, len: u32) -> Result<u32, Error> {
        Ok(len)
    }
}
