//! Which tokens end a text. Files name one or two of them; models use more, and those are known
//! by their names.

use std::collections::BTreeSet;

use schemas::gguf::Metadata;

use super::load::{TokenizerError, token_id};
use super::names::Names;

/// Names that end a text, a turn or a message in some family of models.
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

/// A name of [`END_NAMES`] that ends nothing in vocabularies that have all the others of a row.
const EXCEPTIONS: [(&str, &[&str]); 5] = [
    // Only closes a message where longer structures have ends of their own.
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|return|>", "<|calls|>"]),
    ("<|end|>", &["<|flush|>", "<|call|>"]),
    ("<|end|>", &["<|flush|>", "<|calls|>"]),
    // Ordinary text (mark-up) in a vocabulary with ends of another style.
    ("</s>", &["<|tool_response>"]),
];

/// Separators of fill-in-the-middle training, after which another file begins: their key, and
/// their names where the key is absent.
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

/// End tokens that the file gives by id.
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

/// End tokens recognised by name.
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
