//! Writes the `tokenizer.*` keys: [`bpe`], [`ranks`], [`spm`] or [`characters`] for the vocabulary, [`pre`] for the pre-tokenizer,
//! [`special`] for special tokens, [`template`] for chat templates.
//!
//! A byte-level `tokenizer.json` has precedence, then tiktoken ranks. Otherwise `tokenizer.model` is used, because it has the
//! scores that a `tokenizer.json` derived from it lacks.

mod bpe;
mod characters;
mod files;
mod pre;
mod probe;
mod ranks;
mod special;
mod spm;
mod template;
mod tokens;

use schemas::arch::keys;
use schemas::gguf::{Metadata, Strings};
use serde_json::Value;

use crate::arch::HfArch;
use crate::error::{Error, Names};
use crate::hf_config::HfConfig;
use crate::note::Note;

pub(crate) use template::KEY as CHAT_TEMPLATE;

use bpe::Bpe;
use files::TokenizerFiles;

/// Returns the `tokenizer.*` keys of a checkpoint with `n_vocab` tokens.
pub(crate) fn metadata(
    hf_arch: &HfArch,
    config: &HfConfig,
    n_vocab: u64,
    notes: &mut Vec<Note>,
) -> Result<Metadata, Error> {
    let files = TokenizerFiles::open(&config.folder)?;

    let mut out = Metadata::new();
    let tokenizer_config = files.config.as_ref();
    let space_prefix = tokenizer_config.and_then(|config| config.get("add_prefix_space"));
    if let (true, Some(Value::Bool(add))) = (hf_arch.llama_vocab_rules, space_prefix) {
        out.set(ADD_SPACE_PREFIX, *add);
    }
    let is_characters = hf_arch.gemma4_layout && spm::is_in_json(&files);
    let pieces = if is_characters {
        characters::write(&files, n_vocab, &mut out)?;
        None
    } else if pre::is_byte_level(&files) {
        let pre = pre::name(&files, notes)?;
        byte_level(bpe::read(&files, n_vocab)?, pre, &mut out);
        None
    } else if let (Some(path), Some(pre)) = (&files.ranks, hf_arch.ranks_pre) {
        byte_level(ranks::read(path, &files, n_vocab)?, pre, &mut out);
        None
    } else if let Some(model) = &files.model {
        Some(spm::from_model(model, &files, n_vocab, notes)?)
    } else if spm::is_in_json(&files) {
        Some(spm::from_json(&files, n_vocab)?)
    } else {
        return Err(unsupported(&files));
    };
    let has_spaces_of_its_own = pieces.as_ref().is_some_and(|pieces| !pieces.space_prefix);
    if let Some(pieces) = pieces {
        out.set("tokenizer.ggml.model", "llama");
        out.set("tokenizer.ggml.pre", "default");
        out.set(keys::TOKENS, pieces.tokens);
        out.set("tokenizer.ggml.scores", pieces.scores);
        out.set("tokenizer.ggml.token_type", pieces.types);
    }
    special::write(&files, config, n_vocab, &mut out, notes);
    template::write(&files, &mut out)?;
    normalizer(files.tokenizer.get("normalizer"), &mut out, notes);
    // By default, readers add a space before texts for this kind of vocabulary.
    if has_spaces_of_its_own && !out.contains(ADD_SPACE_PREFIX) {
        out.set(ADD_SPACE_PREFIX, false);
    }
    if is_characters {
        out.set(ADD_SPACE_PREFIX, false);
        out.set("tokenizer.ggml.add_bos_token", true);
    }
    if hf_arch.llama_vocab_rules && n_vocab == GRANITE_VOCAB {
        out.set("tokenizer.ggml.add_bos_token", false);
    }
    Ok(out)
}

const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// Returns a note of the donor's tokens that differ from the checkpoint's own, if any.
pub(crate) fn difference(own: &Metadata, donor: &Metadata) -> Option<Note> {
    fn tokens(keys: &Metadata) -> Option<&Strings> {
        keys.strings(keys::TOKENS).ok().flatten()
    }
    let pairs = tokens(own)?.iter().zip(tokens(donor)?).enumerate();
    let other = pairs.filter(|(_, (own, donor))| own != donor);
    let names: Names = other
        .map(|(id, (own, donor))| format!("{id} {donor:?}, not {own:?}"))
        .collect();
    (!names.0.is_empty()).then_some(Note::OtherTokens { names })
}

/// Writes a byte-level BPE vocabulary.
fn byte_level(bpe: Bpe, pre: &str, out: &mut Metadata) {
    out.set("tokenizer.ggml.model", "gpt2");
    out.set("tokenizer.ggml.pre", pre);
    out.set(keys::TOKENS, bpe.tokens);
    out.set("tokenizer.ggml.token_type", bpe.types);
    out.set("tokenizer.ggml.merges", bpe.merges);
}

/// Returns the error for a `tokenizer.json` that is neither byte-level BPE nor SentencePiece.
fn unsupported(files: &TokenizerFiles) -> Error {
    if let Some(path) = &files.ranks {
        return Error::UnsupportedTokenizer {
            path: path.clone(),
            found: "tiktoken ranks, of which only those of Kimi are supported".to_owned(),
        };
    }
    let model = files.tokenizer.get("model");
    let kind = model.and_then(|model| model.get("type")?.as_str());
    Error::UnsupportedTokenizer {
        path: files.path.clone(),
        found: match kind {
            None | Some("BPE") => {
                "a BPE tokenizer that is neither byte-level nor SentencePiece".to_owned()
            }
            Some(kind) => format!("model type {kind}"),
        },
    }
}

/// Vocabulary size of the small Granite and SmolLM models. llama.cpp's converter uses it to detect that
/// they add no tokens.
const GRANITE_VOCAB: u64 = 49_152;

/// Writes the keys of a normalizer, and notes what no key expresses.
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
        // Replaces spaces as in pieces, which readers do by themselves.
        "Prepend" | "Replace" if marks_spaces(value) => {}
        other => notes.push(Note::Normalizer {
            file: "tokenizer.json",
            found: other.to_owned(),
        }),
    }
}

/// Returns true if a step writes the space of pieces.
fn marks_spaces(step: Option<&Value>) -> bool {
    let written = step.and_then(|step| step.get("content").or(step.get("prepend")));
    written == Some(&Value::from(tokens::PIECE_SPACE))
}
