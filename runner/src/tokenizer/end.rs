//! End-of-generation tokens. Files list one or two of them; models use more, which are recognized
//! by name.

use std::collections::BTreeSet;

use schemas::gguf::Metadata;

use super::load::{TokenizerError, token_id};
use super::names::Names;

/// Names of tokens that end a text, a turn or a message in some model family.
const END_NAMES: [&str; 22] = [
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|tool_response>",
    "[e~[",
];

/// Names of [`END_NAMES`] that end nothing if the vocabulary has all of the listed tokens.
const EXCEPTIONS: [(&str, &[&str]); 5] = [
    // Only ends a message if longer structures have end tokens of their own.
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|return|>", "<|calls|>"]),
    ("<|end|>", &["<|flush|>", "<|call|>"]),
    ("<|end|>", &["<|flush|>", "<|calls|>"]),
    // Ordinary markup in a vocabulary with end tokens in another style.
    ("</s>", &["<|tool_response>"]),
];

/// Separators of fill-in-the-middle training, after which another file begins: their key, and their
/// names if the key is absent.
const SEPARATORS: [(&str, &[&str]); 3] = [
    (
        "tokenizer.ggml.fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        "tokenizer.ggml.fim_rep_token_id",
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    ("tokenizer.ggml.fim_sep_token_id", &["<|file_sep|>"]),
];

/// Returns the end tokens that the file lists by id.
pub(super) fn by_key(
    metadata: &Metadata,
    n_tokens: usize,
) -> Result<BTreeSet<u32>, TokenizerError> {
    let mut ends = BTreeSet::new();
    let keys = ["eos", "eot", "eom"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
    let separators = SEPARATORS.iter().map(|(key, _)| *key);
    for key in keys.iter().map(String::as_str).chain(separators) {
        ends.extend(token_id(metadata, key, n_tokens)?);
    }
    Ok(ends)
}

/// Returns the end tokens recognized by name.
pub(super) fn by_name(metadata: &Metadata, vocabulary: &Names) -> BTreeSet<u32> {
    let excepted = |name: &str| {
        EXCEPTIONS.iter().any(|(end, others)| {
            *end == name && others.iter().all(|&other| vocabulary.id(other).is_some())
        })
    };
    let ends = END_NAMES.iter().filter(|name| !excepted(name));
    let separators = SEPARATORS
        .iter()
        .filter(|(key, _)| !metadata.contains(key))
        .flat_map(|(_, names)| *names);
    ends.chain(separators)
        .filter_map(|&name| vocabulary.id(name))
        .collect()
}
