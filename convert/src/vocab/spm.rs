//! SentencePiece vocabularies: pieces with scores. Readers merge the pair with the best score first.
//!
//! They are read from `tokenizer.model`, SentencePiece's protocol buffer, or from a `tokenizer.json`
//! converted from one: BPE on characters, with byte tokens as fallback.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use prost::Message;
use serde_json::Value;

use super::files::TokenizerFiles;
use super::tokens::{self, AddedToken, TokenType, check_unique, pad, slot};
use crate::error::Error;
use crate::hf_config::{read_file, read_optional_object};
use crate::note::Note;

/// A SentencePiece vocabulary.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Texts by id.
    pub(super) tokens: Vec<String>,
    /// Scores by id. Of all adjacent pairs that form a piece, the one with the best score is merged first.
    pub(super) scores: Vec<f32>,
    /// Types by id.
    pub(super) types: Vec<i32>,
    /// True if readers must add a space before texts; used if the file has no such key.
    pub(super) space_prefix: bool,
}

/// The fields of `tokenizer.model` that readers need.
#[derive(Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<NormalizerSpec>,
}

#[derive(Message)]
struct Piece {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(float, tag = "2")]
    score: f32,
    /// Numbered like `tokenizer.ggml.token_type`.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Message)]
struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
}

#[derive(Message)]
struct NormalizerSpec {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
}

/// `TrainerSpec.model_type` of vocabularies whose scores define the merge order.
const MODEL_TYPE_BPE: i32 = 2;
/// Score of tokens that were added to the model.
pub(super) const ADDED_SCORE: f32 = -1000.0;
/// Score of ids without a token.
const PADDING_SCORE: f32 = -10_000.0;

/// Reads `tokenizer.model` and the added tokens of other files, `n_vocab` in all; ids without a token are
/// padded.
pub(super) fn from_model(
    path: &Path,
    files: &TokenizerFiles,
    n_vocab: u64,
    notes: &mut Vec<Note>,
) -> Result<Pieces, Error> {
    let bytes = read_file(path)?;
    let model = ModelProto::decode(bytes.as_slice()).map_err(|source| Error::TokenizerModel {
        path: path.to_path_buf(),
        source,
    })?;
    if model.pieces.is_empty() {
        return Err(Error::UnsupportedTokenizer {
            path: path.to_path_buf(),
            found: "a file without pieces".to_owned(),
        });
    }
    let space_prefix = check_settings(&model, notes);

    let mut slots: Vec<Option<(String, TokenType)>> = Vec::new();
    slots.resize_with(n_vocab as usize, || None);
    let mut scores = vec![PADDING_SCORE; n_vocab as usize];
    for (id, piece) in (0..).zip(model.pieces) {
        let token_type = match piece.kind.unwrap_or(TokenType::Normal as i32) {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Normal,
        };
        let slot = slot(path, &mut slots, &piece.text, id)?;
        *slot = Some((piece.text, token_type));
        scores[id as usize] = piece.score;
    }
    let named = HashSet::new();
    for token in added_tokens(files, &slots)? {
        let id = token.id;
        let slot = slot(&files.path, &mut slots, &token.text, id)?;
        *slot = Some(token.typed(&named));
        scores[id as usize] = ADDED_SCORE;
    }
    let tokens = pad(slots);
    check_unique(path, &tokens)?;
    Ok(Pieces::new(tokens, scores, space_prefix))
}

/// Returns true if a space is added before texts; adds notes of settings that readers do not follow.
fn check_settings(model: &ModelProto, notes: &mut Vec<Note>) -> bool {
    let model_type = model.trainer.as_ref().and_then(|spec| spec.model_type);
    if model_type != Some(MODEL_TYPE_BPE) {
        notes.push(Note::NoMergeOrder);
    }
    let Some(normalizer) = &model.normalizer else {
        return true;
    };
    let name = normalizer.name.as_deref().unwrap_or("nmt_nfkc");
    if name != "identity" {
        notes.push(Note::Normalizer {
            file: "tokenizer.model",
            found: name.to_owned(),
        });
    }
    if normalizer.remove_extra_whitespaces.unwrap_or(true) {
        notes.push(Note::Normalizer {
            file: "tokenizer.model",
            found: "remove_extra_whitespaces".to_owned(),
        });
    }
    normalizer.add_dummy_prefix.unwrap_or(true)
}

/// Returns tokens in addition to the model's pieces: those of `added_tokens.json`, those of
/// `tokenizer.json` with ids that the model lacks, and those of `tokenizer_config.json`, which override.
fn added_tokens(
    files: &TokenizerFiles,
    pieces: &[Option<(String, TokenType)>],
) -> Result<Vec<AddedToken>, Error> {
    let mut added = Vec::new();
    let older = read_optional_object(&files.folder.join("added_tokens.json"))?;
    for (text, id) in older.iter().flatten() {
        let Some(id) = id.as_u64() else { continue };
        added.push(AddedToken {
            id,
            text: text.clone(),
            special: false,
        });
    }
    let is_piece = |id: u64| matches!(pieces.get(id as usize), Some(Some(_)));
    let json = tokens::json_added_tokens(files)?;
    added.extend(json.into_iter().filter(|token| !is_piece(token.id)));
    added.extend(tokens::config_added_tokens(files)?);
    Ok(added)
}

/// Returns true if `tokenizer.json` has a vocabulary of SentencePiece's kind.
pub(super) fn is_in_json(files: &TokenizerFiles) -> bool {
    let model = files.tokenizer.get("model");
    let field = |name: &str| model.and_then(|model| model.get(name));
    field("type") == Some(&Value::from("BPE")) && field("byte_fallback") == Some(&true.into())
}

/// Reads the vocabulary of a `tokenizer.json`, `n_vocab` tokens; ids without a token are padded.
///
/// The file has no scores. They are derived from the order of merges: the earlier a piece is formed, the
/// better its score. Pieces that no merge forms get the worst scores.
pub(super) fn from_json(files: &TokenizerFiles, n_vocab: u64) -> Result<Pieces, Error> {
    let model = files.tokenizer.get("model").unwrap_or(&Value::Null);
    let merges = tokens::merges(files, model)?;
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let mut tokens = tokens::read(files, model, n_vocab)?;
    for (text, token_type) in &mut tokens {
        if *token_type == TokenType::Normal && is_byte(text) {
            *token_type = TokenType::Byte;
        }
    }
    let score = |(text, _): &(String, TokenType)| {
        let rank = ranks.get(text).copied().unwrap_or(merges.len());
        -(rank as f32)
    };
    let scores = tokens.iter().map(score).collect();
    Ok(Pieces::new(tokens, scores, puts_space_first(files)))
}

/// Returns true for byte tokens such as `<0x0A>`.
pub(super) fn is_byte(text: &str) -> bool {
    let digits = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns true if a step of `tokenizer.json` adds a space before texts.
fn puts_space_first(files: &TokenizerFiles) -> bool {
    fn in_step(step: &Value) -> bool {
        let inner = ["normalizers", "pretokenizers"].iter().filter_map(|&name| {
            let steps = step.get(name)?.as_array()?;
            Some(steps.iter().any(in_step))
        });
        match step.get("type").and_then(Value::as_str) {
            Some("Prepend") => true,
            Some("Metaspace") => {
                let scheme = step.get("prepend_scheme").and_then(Value::as_str);
                // Older files use a flag instead.
                let flag = step.get("add_prefix_space") != Some(&Value::Bool(false));
                scheme.map_or(flag, |scheme| scheme != "never")
            }
            _ => inner.into_iter().any(|found| found),
        }
    }
    let steps = ["normalizer", "pre_tokenizer"];
    let steps = steps.iter().filter_map(|&name| files.tokenizer.get(name));
    steps.into_iter().any(in_step)
}

impl Pieces {
    fn new(tokens: Vec<(String, TokenType)>, scores: Vec<f32>, space_prefix: bool) -> Pieces {
        let (tokens, types) = tokens.into_iter().map(|(text, t)| (text, t as i32)).unzip();
        Pieces {
            tokens,
            scores,
            types,
            space_prefix,
        }
    }
}
