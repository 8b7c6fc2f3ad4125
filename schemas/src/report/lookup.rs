//! Result of `specrun build-lookup`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Result of writing a lookup file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "build-lookup")]
pub struct BuildLookupReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the model whose tokenizer is used.
    pub model: String,
    /// Path of the lookup file.
    pub output: String,
    /// Bytes of the lookup file.
    pub size_bytes: u64,
    /// Shortest and longest n-gram, in tokens.
    pub lengths: [u32; 2],
    /// Number of texts that were read.
    pub n_texts: u64,
    /// Number of tokens in these texts.
    pub n_tokens: u64,
    /// Number of n-grams in the file, those of an extended file included.
    pub n_ngrams: u64,
}
