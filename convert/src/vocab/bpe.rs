//! Byte-level BPE vocabularies: tokens with their types in id order, and merges in rank order.

use std::fs;

use serde_json::Value;

use super::files::TokenizerFiles;
use super::tokens::{self, field_error};
use crate::error::Error;
use crate::hf_config::read_file;

/// The space in byte-level spelling.
const BYTE_SPACE: &str = "\u{0120}";
/// A byte-level BPE vocabulary.
pub(super) struct Bpe {
    /// Texts by id: byte-level spelling for ordinary tokens, plain text for added ones.
    pub(super) tokens: Vec<String>,
    /// Types by id.
    pub(super) types: Vec<i32>,
    /// Pairs as `left right`, in rank order.
    pub(super) merges: Vec<String>,
}

/// Reads a vocabulary of `n_vocab` tokens; ids without a token are padded.
pub(super) fn read(files: &TokenizerFiles, n_vocab: u64) -> Result<Bpe, Error> {
    let model = files.tokenizer.get("model").unwrap_or(&Value::Null);
    check_model(files, model)?;
    let tokens = tokens::read(files, model, n_vocab)?;
    let (tokens, types) = tokens.into_iter().map(|(text, t)| (text, t as i32)).unzip();
    Ok(Bpe {
        tokens,
        types,
        merges: merges(files, model)?,
    })
}

/// Rejects models that are not byte-level BPE, or have settings that no key expresses.
fn check_model(files: &TokenizerFiles, model: &Value) -> Result<(), Error> {
    let refuse = |found: String| {
        Err(Error::UnsupportedTokenizer {
            path: files.path.clone(),
            found,
        })
    };
    let text = |name: &str| model.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "BPE" | "" => {}
        kind => return refuse(format!("model type {kind}")),
    }
    for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if !text(affix).is_empty() {
            return refuse(format!("{affix} {:?}", text(affix)));
        }
    }
    Ok(())
}

/// Reads the merges of `tokenizer.json` or of the older `merges.txt`.
pub(super) fn merges(files: &TokenizerFiles, model: &Value) -> Result<Vec<String>, Error> {
    // A space separates the halves in the file, so spaces inside a half are written in byte-level
    // spelling.
    let half = |half: &str| half.replace(' ', BYTE_SPACE);
    let pairs = tokens::merges(files, model)?;
    let mut merges: Vec<_> = pairs
        .iter()
        .map(|(left, right)| format!("{} {}", half(left), half(right)))
        .collect();
    if merges.is_empty() {
        merges = text_merges(files)?;
    }
    match merges.is_empty() {
        true => Err(field_error(files, "model.merges", "a merge", &Value::Null)),
        false => Ok(merges),
    }
}

fn text_merges(files: &TokenizerFiles) -> Result<Vec<String>, Error> {
    let path = files.folder.join("merges.txt");
    if !fs::exists(&path).unwrap_or(true) {
        return Ok(Vec::new());
    }
    let bytes = read_file(&path)?;
    let text = String::from_utf8_lossy(&bytes);
    let is_title = |line: &str| line.starts_with('#');
    let skipped = usize::from(text.lines().next().is_some_and(is_title));
    let pair = |line: &str| {
        let (left, right) = line.trim().split_once(char::is_whitespace)?;
        let right = right.trim_start();
        (!right.contains(char::is_whitespace)).then(|| format!("{left} {right}"))
    };
    Ok(text.lines().skip(skipped).filter_map(pair).collect())
}
