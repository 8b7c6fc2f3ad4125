//! Byte-level BPE: tokens with their types, in id order, and merges in rank order.

use std::collections::{HashMap, HashSet};
use std::fs;

use serde_json::{Map, Value};

use super::TokenizerFiles;
use crate::error::Error;
use crate::hf_config::read_file;

/// The space as byte-level vocabularies spell it.
const BYTE_SPACE: &str = "\u{0120}";
/// The space as SentencePiece spells it.
const PIECE_SPACE: &str = "\u{2581}";

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy)]
#[repr(i32)]
enum TokenType {
    Normal = 1,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
}

/// A vocabulary.
pub(super) struct Bpe {
    /// Texts by id: byte-level letters for ordinary tokens, plain text for added ones.
    pub(super) tokens: Vec<String>,
    /// Types by id.
    pub(super) types: Vec<i32>,
    /// Pairs as `left right`, by rank.
    pub(super) merges: Vec<String>,
}

/// Reads a vocabulary of `n_vocab` tokens; ids that the tokenizer lacks are padding.
pub(super) fn read(files: &TokenizerFiles, n_vocab: u64) -> Result<Bpe, Error> {
    let model = files.tokenizer.get("model").unwrap_or(&Value::Null);
    check_model(files, model)?;
    let mut slots: Vec<Option<(String, TokenType)>> = Vec::new();
    slots.resize_with(n_vocab as usize, || None);
    let vocab = model.get("vocab").and_then(Value::as_object);
    let Some(vocab) = vocab else {
        return Err(field_error(
            files,
            "model.vocab",
            "tokens with their ids",
            model,
        ));
    };
    let named = files.config.as_ref().map_or(HashSet::new(), named_special);
    for (text, id) in vocab {
        let slot = slot(files, &mut slots, text, id)?;
        if let Some((first, _)) = slot {
            return Err(Error::TokenClash {
                path: files.path.clone(),
                id: id.as_u64().unwrap_or_default(),
                first: first.clone(),
                second: text.clone(),
            });
        }
        let token_type = match named.contains(text.as_str()) {
            true => TokenType::Control,
            false => TokenType::Normal,
        };
        *slot = Some((text.clone(), token_type));
    }
    for token in added_tokens(files)? {
        let id = Value::from(token.id);
        let slot = slot(files, &mut slots, &token.text, &id)?;
        if let Some((first, _)) = slot.as_ref().filter(|(first, _)| *first != token.text) {
            return Err(Error::TokenClash {
                path: files.path.clone(),
                id: token.id,
                first: first.clone(),
                second: token.text,
            });
        }
        let special = token.special || named.contains(token.text.as_str());
        *slot = Some(match special || looks_special(&token.text) {
            true => (token.text, TokenType::Control),
            false => (token.text.replace(PIECE_SPACE, " "), TokenType::UserDefined),
        });
    }
    let (tokens, types): (Vec<_>, Vec<_>) = slots
        .into_iter()
        .enumerate()
        .map(|(id, slot)| slot.unwrap_or_else(|| (format!("[PAD{id}]"), TokenType::Unused)))
        .map(|(text, token_type)| (text, token_type as i32))
        .unzip();
    check_unique(files, &tokens)?;
    Ok(Bpe {
        tokens,
        types,
        merges: merges(files, model)?,
    })
}

/// Refuses models that are not byte-level BPE, or do something that no key can say.
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
    if model.get("byte_fallback") == Some(&Value::Bool(true)) {
        return refuse("a SentencePiece vocabulary (byte_fallback)".to_owned());
    }
    for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if !text(affix).is_empty() {
            return refuse(format!("{affix} {:?}", text(affix)));
        }
    }
    Ok(())
}

fn field_error(files: &TokenizerFiles, field: &str, expected: &str, found: &Value) -> Error {
    let found = match found {
        Value::Null => "nothing",
        Value::Object(_) => "an object",
        Value::Array(_) => "a list",
        Value::String(_) => "text",
        Value::Number(_) => "a number",
        Value::Bool(_) => "a truth value",
    };
    Error::Field {
        path: files.path.clone(),
        field: field.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

/// The place of a token of that id.
fn slot<'a, T>(
    files: &TokenizerFiles,
    slots: &'a mut [T],
    text: &str,
    id: &Value,
) -> Result<&'a mut T, Error> {
    let n_vocab = slots.len() as u64;
    let Some(id) = id.as_u64() else {
        return Err(field_error(files, "model.vocab", "ids of 0 or more", id));
    };
    let place = usize::try_from(id).ok().and_then(|id| slots.get_mut(id));
    place.ok_or_else(|| Error::TokenId {
        path: files.path.clone(),
        text: text.to_owned(),
        id,
        n_vocab,
    })
}

/// A token that is matched as a whole before text is split.
pub(super) struct AddedToken {
    pub(super) id: u64,
    pub(super) text: String,
    special: bool,
}

/// Added tokens of `tokenizer.json`; those of `tokenizer_config.json` come after, as they decide.
pub(super) fn added_tokens(files: &TokenizerFiles) -> Result<Vec<AddedToken>, Error> {
    let error = |found: &Value| {
        field_error(
            files,
            "added_tokens",
            "entries with an id and content",
            found,
        )
    };
    let mut tokens = Vec::new();
    let mut add = |id: Option<u64>, entry: &Value| {
        let text = entry.get("content").and_then(Value::as_str);
        let (Some(id), Some(text)) = (id, text) else {
            return Err(error(entry));
        };
        tokens.push(AddedToken {
            id,
            text: text.to_owned(),
            special: entry.get("special") == Some(&Value::Bool(true)),
        });
        Ok(())
    };
    match files.tokenizer.get("added_tokens") {
        None | Some(Value::Null) => {}
        Some(Value::Array(entries)) => {
            for entry in entries {
                add(entry.get("id").and_then(Value::as_u64), entry)?;
            }
        }
        Some(other) => return Err(error(other)),
    }
    let config = files.config.as_ref();
    if let Some(Value::Object(entries)) = config.and_then(|c| c.get("added_tokens_decoder")) {
        for (id, entry) in entries {
            add(id.parse().ok(), entry)?;
        }
    }
    Ok(tokens)
}

/// Texts that the tokenizer config gives a role, which makes them special.
fn named_special(config: &Map<String, Value>) -> HashSet<&str> {
    fn text(value: &Value) -> Option<&str> {
        value.as_str().or_else(|| value.get("content")?.as_str())
    }
    let mut named = HashSet::new();
    for (field, value) in config {
        match (field.as_str(), value) {
            ("additional_special_tokens" | "extra_special_tokens", Value::Array(items)) => {
                named.extend(items.iter().filter_map(text));
            }
            ("extra_special_tokens", Value::Object(items)) => {
                named.extend(items.values().filter_map(text));
            }
            (field, value) if field.ends_with("_token") => named.extend(text(value)),
            _ => {}
        }
    }
    named
}

/// Tokens that some checkpoints fail to mark as special.
fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}

fn check_unique(files: &TokenizerFiles, tokens: &[String]) -> Result<(), Error> {
    let mut seen = HashMap::with_capacity(tokens.len());
    for (id, text) in tokens.iter().enumerate() {
        if let Some(first) = seen.insert(text, id) {
            return Err(Error::DuplicateToken {
                path: files.path.clone(),
                text: text.clone(),
                first: first as u64,
                second: id as u64,
            });
        }
    }
    Ok(())
}

/// Merges, of `tokenizer.json` or of the older `merges.txt`.
fn merges(files: &TokenizerFiles, model: &Value) -> Result<Vec<String>, Error> {
    let stored = model.get("merges").and_then(Value::as_array);
    let stored = stored.map_or(&[][..], Vec::as_slice);
    let merge = |entry: &Value| match entry {
        Value::String(pair) => Some(pair.clone()),
        Value::Array(pair) => {
            let [left, right] = pair.as_slice() else {
                return None;
            };
            // The file separates the halves by a space, so one inside is spelled as a byte.
            let half = |half: &Value| Some(half.as_str()?.replace(' ', BYTE_SPACE));
            Some(format!("{} {}", half(left)?, half(right)?))
        }
        _ => None,
    };
    let mut merges = Vec::with_capacity(stored.len());
    for entry in stored {
        let pair = "pairs of texts";
        let merge = merge(entry).ok_or_else(|| field_error(files, "model.merges", pair, entry));
        merges.push(merge?);
    }
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
