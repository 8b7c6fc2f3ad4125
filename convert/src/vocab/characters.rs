//! BPE on characters: Gemma 4's vocabularies. A space is a character of its own, and a character without a
//! token is written as bytes. Readers merge pairs in the order of the merges, as for byte-level BPE.

use std::collections::HashSet;

use schemas::arch::keys;
use schemas::gguf::{Array, Metadata, Value};
use serde_json::Value as Json;

use super::bpe;
use super::files::TokenizerFiles;
use super::spm::{ADDED_SCORE, is_byte};
use super::tokens::{self, TokenType, check_unique, pad, slot};
use crate::error::Error;

/// Control tokens that readers print, so that programs can parse them.
const PRINTED: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Writes the vocabulary of a `tokenizer.json`, `n_vocab` tokens; ids without a token are padded.
pub(super) fn write(files: &TokenizerFiles, n_vocab: u64, out: &mut Metadata) -> Result<(), Error> {
    let model = files.tokenizer.get("model").unwrap_or(&Json::Null);
    let merges = bpe::merges(files, model)?;
    let named = files
        .config
        .as_ref()
        .map_or(HashSet::new(), tokens::named_special);
    // A token that is only marked as special is text; one with a role is not.
    let kind = |text: &str, other| match text {
        text if PRINTED.contains(&text) => TokenType::UserDefined,
        text if is_byte(text) => TokenType::Byte,
        text if named.contains(text) => TokenType::Control,
        _ => other,
    };
    let mut slots = tokens::of_model(files, model, n_vocab, |text| kind(text, TokenType::Normal))?;
    for token in tokens::added_tokens(files)? {
        let slot = slot(&files.path, &mut slots, &token.text, token.id)?;
        let other = slot.as_ref().filter(|(first, _)| *first != token.text);
        tokens::check_free(files, other, &token.text, token.id)?;
        let kind = kind(&token.text, TokenType::UserDefined);
        slot.get_or_insert((token.text, kind));
    }
    let tokens = pad(slots);
    check_unique(&files.path, &tokens)?;
    let (tokens, types): (Vec<String>, Vec<i32>) =
        tokens.into_iter().map(|(text, t)| (text, t as i32)).unzip();
    let scores = vec![ADDED_SCORE; tokens.len()];
    out.set("tokenizer.ggml.model", "gemma4");
    out.set(keys::TOKENS, tokens);
    out.set("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    out.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    out.set("tokenizer.ggml.merges", merges);
    Ok(())
}
