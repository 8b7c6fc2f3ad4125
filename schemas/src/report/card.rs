//! Result of `specconv card`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Estimate;

/// A model card that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "card")]
pub struct CardReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the card.
    pub card: String,
    /// Path of the file with the hashes.
    pub sums: String,
    /// Models in the folder, the smallest first.
    pub files: Vec<CardFile>,
    /// Keys of the front matter, in order.
    pub front_matter: Vec<String>,
    /// Facts that the card lacks, one sentence each.
    pub notes: Vec<String>,
}

/// A model of a card. Values that no report states are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CardFile {
    /// Name of the file, or of the first shard of a split model.
    pub name: String,
    /// Quantization mix by `general.file_type`.
    pub file_type: Option<String>,
    /// Bytes of the file, or of all shards.
    pub size_bytes: u64,
    /// Bits of tensor data per weight.
    pub bits_per_weight: f64,
    /// SHA-256 of the file, or of each shard.
    pub sha256: Vec<String>,
    /// Mean Kullback-Leibler divergence from the base, in nats.
    pub kld: Option<Estimate>,
    /// Share of the positions at which the base has the same likeliest token.
    pub same_top: Option<Estimate>,
    /// Perplexity divided by that of the base.
    pub perplexity_ratio: Option<Estimate>,
    /// The fastest speculator that was verified with this file.
    pub draft: Option<CardDraft>,
}

/// A verified speculator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CardDraft {
    /// Name of the speculator, or names of a chain, separated by commas.
    pub speculator: String,
    /// Names of the draft files.
    pub files: Vec<String>,
    /// Maximum draft length in tokens.
    pub n_draft_max: u32,
    /// Accepted draft tokens divided by drafted ones.
    pub acceptance: Option<f64>,
    /// Tokens generated per forward pass of the target.
    pub tokens_per_target_pass: Option<f64>,
    /// Tokens per second with drafts divided by those without.
    pub speedup: Option<f64>,
}
