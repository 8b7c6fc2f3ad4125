//! SentencePiece vocabularies: pieces of text with scores, the best of which readers merge first.
//!
//! They come from `tokenizer.model`, the protocol buffer that SentencePiece writes, or from a
//! `tokenizer.json` that was made of one: BPE on characters, with tokens for bytes to fall back to.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use prost::Message;
use serde_json::Value;

use super::TokenizerFiles;
use super::tokens::{self, AddedToken, TokenType, check_unique, pad, slot};
use crate::error::Error;
use crate::hf_config::{read_file, read_optional_object};
use crate::note::Note;

/// A vocabulary.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Texts by id.
    pub(super) tokens: Vec<String>,
    /// Scores by id: of all neighbours that make a piece together, the best score is merged first.
    pub(super) scores: Vec<f32>,
    /// Types by id.
    pub(super) types: Vec<i32>,
    /// Whether a text begins with a space that nobody wrote, where the file does not say.
    pub(super) space_prefix: bool,
}

/// A `tokenizer.model`, as far as it matters to readers.
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
    /// The numbers are those of `tokenizer.ggml.token_type`.
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

/// `TrainerSpec.model_type` of vocabularies whose scores say what to merge first.
const MODEL_TYPE_BPE: i32 = 2;
/// The score of tokens that were added to the model.
const ADDED_SCORE: f32 = -1000.0;
/// The score of ids that no token has.
const PADDING_SCORE: f32 = -10_000.0;

/// Reads `tokenizer.model` and the tokens added beside it, `n_vocab` in all; ids without a token
/// are padding.
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

/// Whether a space is put before texts; notes what readers do otherwise than the model says.
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

/// Tokens beside the model's pieces: of `added_tokens.json`, of `tokenizer.json` where the model
/// has none of that id, and of `tokenizer_config.json`, which decides.
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

/// Whether `tokenizer.json` holds a vocabulary of SentencePiece's kind.
pub(super) fn is_in_json(files: &TokenizerFiles) -> bool {
    let model = files.tokenizer.get("model");
    let field = |name: &str| model.and_then(|model| model.get(name));
    field("type") == Some(&Value::from("BPE")) && field("byte_fallback") == Some(&true.into())
}

/// Reads the vocabulary of a `tokenizer.json`, `n_vocab` tokens; ids without one are padding.
///
/// The file has no scores but an order of merges, which gives them: the earlier a piece is made,
/// the better. What no merge makes is merged after everything else.
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

/// Whether a token stands for a byte: `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Whether a step of `tokenizer.json` puts a space before texts.
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
                // Older files say it with a flag.
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
