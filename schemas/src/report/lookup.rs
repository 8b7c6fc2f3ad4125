//! Result of `specrun build-lookup`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A lookup file that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "build-lookup")]
pub struct BuildLookupReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The model whose tokens are counted.
    pub model: String,
    /// The file.
    pub output: String,
    /// Its bytes.
    pub size_bytes: u64,
    /// Lengths of the n-grams, shortest and longest.
    pub lengths: [u32; 2],
    /// Texts that were read.
    pub n_texts: u64,
    /// Their tokens.
    pub n_tokens: u64,
    /// N-grams in the file, those of a file that was added to included.
    pub n_ngrams: u64,
}
