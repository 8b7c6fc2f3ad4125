//! [`DraftConfig`]: draft lengths, and the sizes of n-gram speculators.

use super::{DraftLimits, NgramMapConfig, NgramModConfig, NgramSimple, Values};

/// Configuration of drafting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftConfig {
    /// Draft length and limits of draft models.
    pub limits: DraftLimits,
    /// The choice of the draft length within these limits.
    pub length: DraftLength,
    /// Sizes of the n-gram speculators.
    pub ngrams: NgramConfig,
}

/// The choice of the draft length within its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftLength {
    /// Always the maximum.
    #[default]
    Fixed,
    /// From the measured cost of passes on this machine and the acceptance rate.
    Automatic,
}

/// Sizes of the n-gram speculators; the defaults are llama.cpp's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramConfig {
    /// Sizes for `ngram-simple`.
    pub simple: NgramSimple,
    /// Sizes for `ngram-map-k`.
    pub map_k: NgramMapConfig,
    /// Sizes for `ngram-map-k4v`.
    pub map_k4v: NgramMapConfig,
    /// Sizes for `ngram-mod`.
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

impl DraftConfig {
    /// Returns the defaults with a fixed draft length of `n_max` tokens for draft models.
    pub fn of_length(n_max: usize) -> DraftConfig {
        DraftConfig {
            limits: DraftLimits::of_length(n_max),
            ..DraftConfig::default()
        }
    }
}
