//! [`Drafting`]: how long drafts are, and what n-grams are looked for.

use super::{ChainConfig, NgramMapConfig, NgramModConfig, NgramSimple, SpecType, Values};

/// How drafts are made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drafting {
    /// How long the drafts of a model are.
    pub chain: ChainConfig,
    /// Whether all are as long as they can be.
    pub lengths: Lengths,
    /// Sizes of the speculators without a model.
    pub ngrams: NgramConfig,
}

/// What decides how long drafts are, within their bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lengths {
    /// The bounds.
    #[default]
    Fixed,
    /// What passes cost on this machine, and how many drafted tokens stand.
    ByCost,
}

/// Sizes of the speculators that look for n-grams; by default the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramConfig {
    /// Of `ngram-simple`.
    pub simple: NgramSimple,
    /// Of `ngram-map-k`.
    pub map_k: NgramMapConfig,
    /// Of `ngram-map-k4v`.
    pub map_k4v: NgramMapConfig,
    /// Of `ngram-mod`.
    pub hashed: NgramModConfig,
}

impl Default for NgramConfig {
    fn default() -> NgramConfig {
        NgramConfig {
            simple: NgramSimple::default(),
            map_k: NgramMapConfig::of(Values::Latest),
            map_k4v: NgramMapConfig::of(Values::Counted { min_hits: 1 }),
            hashed: NgramModConfig::default(),
        }
    }
}

impl Drafting {
    /// The drafts of models always of that many tokens.
    pub fn of_length(n_max: usize) -> Drafting {
        Drafting {
            chain: ChainConfig::of_length(n_max),
            ..Drafting::default()
        }
    }

    /// Most tokens that one of that kind drafts.
    pub fn longest(&self, kind: SpecType) -> usize {
        match kind {
            SpecType::DraftMtp | SpecType::DraftSimple | SpecType::DraftEagle3 => self.chain.n_max,
            SpecType::NgramSimple => self.ngrams.simple.m.get(),
            SpecType::NgramMapK => self.ngrams.map_k.m.get(),
            SpecType::NgramMapK4v => self.ngrams.map_k4v.m.get(),
            SpecType::NgramMod => self.ngrams.hashed.n_max,
            SpecType::NgramCache => super::ngram_cache::N_DRAFT,
        }
    }
}
