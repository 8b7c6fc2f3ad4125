//! Flags of the n-gram speculators, under llama.cpp's names.

use std::num::NonZeroUsize;

use runner::context::MAX_DRAFT;
use runner::speculate::{NgramConfig, NgramMapConfig, NgramModConfig, NgramSimple, Values};

/// Help heading of these flags. Fields flattened after them must not inherit it.
const HEADING: &str = "N-grams";

/// Match and draft lengths of the n-gram speculators.
#[derive(Debug, clap::Args)]
pub(super) struct NgramArgs {
    /// Match length of ngram-simple, in tokens
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "12", value_parser = match_length)]
    spec_ngram_simple_size_n: NonZeroUsize,
    /// Maximum draft length of ngram-simple, in tokens
    #[arg(long, help_heading = HEADING, value_name = "M", default_value = "48", value_parser = draft_length)]
    spec_ngram_simple_size_m: NonZeroUsize,
    /// Match length of ngram-map-k, in tokens
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "12", value_parser = match_length)]
    spec_ngram_map_k_size_n: NonZeroUsize,
    /// Maximum draft length of ngram-map-k, in tokens
    #[arg(long, help_heading = HEADING, value_name = "M", default_value = "48", value_parser = draft_length)]
    spec_ngram_map_k_size_m: NonZeroUsize,
    /// Match length of ngram-map-k4v, in tokens
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "12", value_parser = match_length)]
    spec_ngram_map_k4v_size_n: NonZeroUsize,
    /// Maximum draft length of ngram-map-k4v, in tokens
    #[arg(long, help_heading = HEADING, value_name = "M", default_value = "48", value_parser = draft_length)]
    spec_ngram_map_k4v_size_m: NonZeroUsize,
    /// Minimum number of earlier occurrences before ngram-map-k4v drafts
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    spec_ngram_map_k4v_min_hits: u16,
    /// Accepted for compatibility with llama.cpp; no effect
    #[arg(long, help_heading = HEADING, value_name = "N", hide = true)]
    spec_ngram_simple_min_hits: Option<u16>,
    /// Accepted for compatibility with llama.cpp; no effect
    #[arg(long, help_heading = HEADING, value_name = "N", hide = true)]
    spec_ngram_map_k_min_hits: Option<u16>,
    /// Match length of ngram-mod, in tokens; below 16, most drafts are wrong
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "24", value_parser = match_length)]
    spec_ngram_mod_n_match: NonZeroUsize,
    /// Minimum draft length of ngram-mod, in tokens
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "48", value_parser = clap::value_parser!(u8).range(..=MAX_LEN))]
    spec_ngram_mod_n_min: u8,
    /// Maximum draft length of ngram-mod, in tokens
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u8).range(..=MAX_LEN))]
    spec_ngram_mod_n_max: u8,
}

const MAX_LEN: i64 = MAX_DRAFT as i64;

fn match_length(text: &str) -> Result<NonZeroUsize, String> {
    length(text, 1024)
}

fn draft_length(text: &str) -> Result<NonZeroUsize, String> {
    length(text, MAX_DRAFT)
}

fn length(text: &str, max: usize) -> Result<NonZeroUsize, String> {
    let number = text.parse().ok().filter(|n: &NonZeroUsize| n.get() <= max);
    number.ok_or_else(|| format!("expected a number from 1 to {max}"))
}

impl NgramArgs {
    pub(super) fn config(&self) -> anyhow::Result<NgramConfig> {
        let min_hits = self.spec_ngram_map_k4v_min_hits;
        let (n_min, n_max) = (self.spec_ngram_mod_n_min, self.spec_ngram_mod_n_max);
        anyhow::ensure!(
            n_min <= n_max,
            "--spec-ngram-mod-n-min {n_min}: expected at most --spec-ngram-mod-n-max, which is {n_max}"
        );
        Ok(NgramConfig {
            simple: NgramSimple {
                n: self.spec_ngram_simple_size_n,
                m: self.spec_ngram_simple_size_m,
            },
            map_k: NgramMapConfig {
                n: self.spec_ngram_map_k_size_n,
                m: self.spec_ngram_map_k_size_m,
                values: Values::Latest,
            },
            map_k4v: NgramMapConfig {
                n: self.spec_ngram_map_k4v_size_n,
                m: self.spec_ngram_map_k4v_size_m,
                values: Values::Counted { min_hits },
            },
            hashed: NgramModConfig {
                n: self.spec_ngram_mod_n_match,
                n_min: n_min.into(),
                n_max: n_max.into(),
            },
        })
    }
}
