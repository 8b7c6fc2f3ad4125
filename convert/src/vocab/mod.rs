//! Tokenizer files to `tokenizer.*` keys: [`bpe`] for tokens and merges, [`pre`] for the way of
//! splitting text into words, [`special`] for the tokens with a role, [`template`] for chats.
//!
//! Which kind of tokenizer a checkpoint has shows in `tokenizer.json`, not in which files lie
//! beside it.

mod bpe;
mod pre;
mod special;
mod template;

use std::fs;
use std::path::PathBuf;

use schemas::arch::{ArchSpec, keys};
use schemas::gguf::Metadata;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::hf_config::{HfConfig, read_object, read_optional_object};
use crate::note::Note;

/// The tokenizer files of a checkpoint.
struct TokenizerFiles {
    folder: PathBuf,
    /// `tokenizer.json`.
    path: PathBuf,
    tokenizer: Map<String, Value>,
    /// `tokenizer_config.json`, where there is one.
    config: Option<Map<String, Value>>,
}

/// The `tokenizer.*` keys of a checkpoint with that many tokens.
pub(crate) fn metadata(
    arch: &ArchSpec,
    config: &HfConfig,
    n_vocab: u64,
    notes: &mut Vec<Note>,
) -> Result<Metadata, Error> {
    let folder = &config.folder;
    let path = folder.join("tokenizer.json");
    let sentencepiece = folder.join("tokenizer.model");
    if !fs::exists(&path).unwrap_or(true) && fs::exists(&sentencepiece).unwrap_or(false) {
        return Err(Error::UnsupportedTokenizer {
            path: sentencepiece,
            found: "a SentencePiece vocabulary".to_owned(),
        });
    }
    let files = TokenizerFiles {
        folder: folder.clone(),
        tokenizer: read_object(&path)?,
        path,
        config: read_optional_object(&folder.join("tokenizer_config.json"))?,
    };
    let words = pre::words(&files)?;
    let bpe = bpe::read(&files, n_vocab)?;

    let mut out = Metadata::new();
    let tokenizer_config = files.config.as_ref();
    let space_prefix = tokenizer_config.and_then(|config| config.get("add_prefix_space"));
    if let (true, Some(Value::Bool(add))) = (is_llama(arch), space_prefix) {
        out.set("tokenizer.ggml.add_space_prefix", *add);
    }
    out.set("tokenizer.ggml.model", "gpt2");
    out.set("tokenizer.ggml.pre", words);
    out.set(keys::TOKENS, bpe.tokens);
    out.set("tokenizer.ggml.token_type", bpe.types);
    out.set("tokenizer.ggml.merges", bpe.merges);
    special::write(&files, config, n_vocab, &mut out, notes);
    template::write(&files, &mut out)?;
    normalizer(files.tokenizer.get("normalizer"), &mut out, notes);
    if is_llama(arch) && n_vocab == GRANITE_VOCAB {
        out.set("tokenizer.ggml.add_bos_token", false);
    }
    Ok(out)
}

/// Tokens of the small Granite and SmolLM models, by which the peer knows that they add none.
const GRANITE_VOCAB: u64 = 49_152;

/// The peer's Llama converter has two rules for vocabularies that no other has; byte-level readers
/// ignore the one on spaces, and agree without the one on added tokens.
fn is_llama(arch: &ArchSpec) -> bool {
    arch.name == "llama"
}

/// What the keys can say of a normalizer; a note of what they cannot.
fn normalizer(value: Option<&Value>, out: &mut Metadata, notes: &mut Vec<Note>) {
    let Some(kind) = value.and_then(|value| value.get("type")?.as_str()) else {
        return;
    };
    let lowercase = "tokenizer.ggml.normalizer.lowercase";
    let strip_accents = "tokenizer.ggml.normalizer.strip_accents";
    let flag = |name: &str| value.and_then(|value| value.get(name)?.as_bool());
    match kind {
        "Lowercase" => out.set(lowercase, true),
        "StripAccents" => out.set(strip_accents, true),
        "BertNormalizer" => {
            for (key, name) in [(lowercase, "lowercase"), (strip_accents, "strip_accents")] {
                if let Some(flag) = flag(name) {
                    out.set(key, flag);
                }
            }
        }
        "Sequence" => {
            let steps = value.and_then(|value| value.get("normalizers")?.as_array());
            for step in steps.into_iter().flatten() {
                normalizer(Some(step), out, notes);
            }
        }
        other => notes.push(Note::Normalizer {
            found: other.to_owned(),
        }),
    }
}
