//! Tokens by id, shared by all kinds of vocabularies. Ordinary tokens are those of the model in
//! `tokenizer.json`; added tokens come from up to two files and override ordinary ones.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::files::TokenizerFiles;
use crate::error::Error;

/// The space in SentencePiece spelling.
pub(super) const PIECE_SPACE: &str = "\u{2581}";

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Reads the tokens of `tokenizer.json`, `n_vocab` in all: the model's, then the added ones; ids without a
/// token are padded.
pub(super) fn read(
    files: &TokenizerFiles,
    model: &Value,
    n_vocab: u64,
) -> Result<Vec<(String, TokenType)>, Error> {
    let named = files.config.as_ref().map_or(HashSet::new(), named_special);
    let kind = |text: &str| match named.contains(text) {
        true => TokenType::Control,
        false => TokenType::Normal,
    };
    let mut slots = of_model(files, model, n_vocab, kind)?;
    for token in added_tokens(files)? {
        let slot = slot(&files.path, &mut slots, &token.text, token.id)?;
        let other = slot.as_ref().filter(|(first, _)| *first != token.text);
        check_free(files, other, &token.text, token.id)?;
        *slot = Some(token.typed(&named));
    }
    let tokens: Vec<_> = pad(slots);
    check_unique(&files.path, &tokens)?;
    Ok(tokens)
}

/// Reads the model's own tokens by id; `kind` returns the type of a token.
pub(super) fn of_model(
    files: &TokenizerFiles,
    model: &Value,
    n_vocab: u64,
    kind: impl Fn(&str) -> TokenType,
) -> Result<Vec<Option<(String, TokenType)>>, Error> {
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
    for (text, id) in vocab {
        let Some(id) = id.as_u64() else {
            return Err(field_error(files, "model.vocab", "ids of 0 or more", id));
        };
        let slot = slot(&files.path, &mut slots, text, id)?;
        check_free(files, slot.as_ref(), text, id)?;
        *slot = Some((text.clone(), kind(text)));
    }
    Ok(slots)
}

/// Rejects a second token with the same id.
pub(super) fn check_free(
    files: &TokenizerFiles,
    taken: Option<&(String, TokenType)>,
    text: &str,
    id: u64,
) -> Result<(), Error> {
    match taken {
        None => Ok(()),
        Some((first, _)) => Err(Error::TokenClash {
            path: files.path.clone(),
            id,
            first: first.clone(),
            second: text.to_owned(),
        }),
    }
}

/// Returns the tokens by id; ids without a token get a padding token.
pub(super) fn pad(slots: Vec<Option<(String, TokenType)>>) -> Vec<(String, TokenType)> {
    let padding = |id| (format!("[PAD{id}]"), TokenType::Unused);
    let slots = slots.into_iter().enumerate();
    slots
        .map(|(id, slot)| slot.unwrap_or_else(|| padding(id)))
        .collect()
}

/// Returns the merges of `tokenizer.json` in rank order.
pub(super) fn merges(
    files: &TokenizerFiles,
    model: &Value,
) -> Result<Vec<(String, String)>, Error> {
    let stored = model.get("merges").and_then(Value::as_array);
    let merge = |entry: &Value| match entry {
        Value::String(pair) => {
            let (left, right) = pair.split_once(' ')?;
            Some((left.to_owned(), right.to_owned()))
        }
        Value::Array(pair) => match pair.as_slice() {
            [left, right] => Some((left.as_str()?.to_owned(), right.as_str()?.to_owned())),
            _ => None,
        },
        _ => None,
    };
    let mut merges = Vec::new();
    for entry in stored.map_or(&[][..], Vec::as_slice) {
        let pair = "pairs of texts";
        let merge = merge(entry).ok_or_else(|| field_error(files, "model.merges", pair, entry));
        merges.push(merge?);
    }
    Ok(merges)
}

/// Returns the error for a field of `tokenizer.json`.
pub(super) fn field_error(
    files: &TokenizerFiles,
    field: &str,
    expected: &str,
    found: &Value,
) -> Error {
    let found = match found {
        Value::Null => "nothing",
        Value::Object(_) => "an object",
        Value::Array(_) => "a list",
        Value::String(_) => "text",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
    };
    Error::Field {
        path: files.path.clone(),
        field: field.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

/// Returns the slot of a token id.
pub(super) fn slot<'a, T>(
    path: &Path,
    slots: &'a mut [T],
    text: &str,
    id: u64,
) -> Result<&'a mut T, Error> {
    let n_vocab = slots.len() as u64;
    let place = usize::try_from(id).ok().and_then(|id| slots.get_mut(id));
    place.ok_or_else(|| Error::TokenId {
        path: path.to_path_buf(),
        text: text.to_owned(),
        id,
        n_vocab,
    })
}

/// A token that is matched as a whole, before text is split.
pub(super) struct AddedToken {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) special: bool,
}

impl AddedToken {
    /// Returns text and type: special if it is marked so, has a role, or looks special.
    pub(super) fn typed(self, named: &HashSet<&str>) -> (String, TokenType) {
        let special = self.special || named.contains(self.text.as_str());
        match special || looks_special(&self.text) {
            true => (self.text, TokenType::Control),
            // Readers match these before they replace spaces as in pieces.
            false => (self.text.replace(PIECE_SPACE, " "), TokenType::UserDefined),
        }
    }
}

/// Returns the added tokens of `tokenizer.json`, then those of `tokenizer_config.json`, which override.
pub(super) fn added_tokens(files: &TokenizerFiles) -> Result<Vec<AddedToken>, Error> {
    let mut tokens = json_added_tokens(files)?;
    tokens.extend(config_added_tokens(files)?);
    Ok(tokens)
}

/// Returns the added tokens of `tokenizer.json`.
pub(super) fn json_added_tokens(files: &TokenizerFiles) -> Result<Vec<AddedToken>, Error> {
    match files.tokenizer.get("added_tokens") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(entries)) => entries
            .iter()
            .map(|entry| added_token(files, entry.get("id").and_then(Value::as_u64), entry))
            .collect(),
        Some(other) => Err(added_token_error(files, other)),
    }
}

/// Returns the added tokens of `tokenizer_config.json`.
pub(super) fn config_added_tokens(files: &TokenizerFiles) -> Result<Vec<AddedToken>, Error> {
    let config = files.config.as_ref();
    let Some(Value::Object(entries)) = config.and_then(|c| c.get("added_tokens_decoder")) else {
        return Ok(Vec::new());
    };
    entries
        .iter()
        .map(|(id, entry)| added_token(files, id.parse().ok(), entry))
        .collect()
}

fn added_token(
    files: &TokenizerFiles,
    id: Option<u64>,
    entry: &Value,
) -> Result<AddedToken, Error> {
    let text = entry.get("content").and_then(Value::as_str);
    let (Some(id), Some(text)) = (id, text) else {
        return Err(added_token_error(files, entry));
    };
    Ok(AddedToken {
        id,
        text: text.to_owned(),
        special: entry.get("special") == Some(&Value::Bool(true)),
    })
}

fn added_token_error(files: &TokenizerFiles, found: &Value) -> Error {
    field_error(
        files,
        "added_tokens",
        "entries with an id and content",
        found,
    )
}

/// Returns the texts that have a role in the tokenizer config, which makes them special.
pub(super) fn named_special(config: &Map<String, Value>) -> HashSet<&str> {
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

/// Returns true for tokens that some checkpoints do not mark as special.
fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}

/// Rejects two tokens with the same text.
pub(super) fn check_unique(path: &Path, tokens: &[(String, TokenType)]) -> Result<(), Error> {
    let mut seen = HashMap::with_capacity(tokens.len());
    for (id, (text, _)) in tokens.iter().enumerate() {
        if let Some(first) = seen.insert(text, id) {
            return Err(Error::DuplicateToken {
                path: path.to_path_buf(),
                text: text.clone(),
                first: first as u64,
                second: id as u64,
            });
        }
    }
    Ok(())
}
