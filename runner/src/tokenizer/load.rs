//! Loading of a [`Tokenizer`] from metadata keys.

use std::cmp::Reverse;

use schemas::arch::keys::TOKENS;
use schemas::gguf::{KeyError, Metadata, Strings};

use super::names::Names;
use super::pieces::{self, Pieces};
use super::split::PreTokenizer;
use super::words::Words;
use super::{Merger, NamedToken, TokenKind, Tokenizer, bytes, end};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
const EOS_ID: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const UNKNOWN_ID: &str = "tokenizer.ggml.unknown_token_id";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// A tokenizer cannot be loaded from the metadata.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The kind of tokenizer is not supported.
    #[error(
        "key {MODEL}: expected gpt2 (byte-level BPE), gemma4 (BPE on characters) or llama (SentencePiece), found {found}"
    )]
    Model {
        /// The kind.
        found: String,
    },
    /// The pre-tokenizer is not supported.
    #[error("key {PRE}: unknown pre-tokenizer {found}, known are {known}")]
    PreTokenizer {
        /// The name in the file.
        found: String,
        /// All supported names.
        known: String,
    },
    /// The arrays of a vocabulary have different lengths.
    #[error("key {key}: expected {expected} elements, as in {TOKENS}, found {found}")]
    Length {
        /// The key of the array.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of elements.
        found: usize,
    },
    /// An element of an array is invalid.
    #[error("key {key}: element {index}: {problem}")]
    Element {
        /// The key of the array.
        key: &'static str,
        /// Index from 0.
        index: usize,
        /// Description of the error.
        problem: String,
    },
    /// A key contains a token id outside the vocabulary.
    #[error("key {key}: token {id} is outside the vocabulary of {n_tokens}")]
    TokenId {
        /// The key.
        key: String,
        /// The id in the file.
        id: u32,
        /// Size of the vocabulary.
        n_tokens: usize,
    },
}

impl Tokenizer {
    /// Loads the tokenizer of a file. Byte-level BPE (`tokenizer.ggml.model` = `gpt2`), BPE on characters
    /// (`gemma4`) and SentencePiece (`llama`) are supported. Without `tokenizer.ggml.pre` the pre-tokenizer is
    /// `default`, which matches no particular model; without token types all tokens are normal.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        let kind = Kind::of(metadata)?;
        let names = Names::read(metadata)?;
        let mut kinds = token_kinds(metadata, names.len())?;

        let bos = token_id(metadata, BOS_ID, names.len())?;
        let bos = bos.or(kind.default_id(1, names.len()));
        let eos = token_id(metadata, EOS_ID, names.len())?;
        let eos = eos.or(kind.default_id(2, names.len()));
        let add_bos = metadata.bool(ADD_BOS)?.unwrap_or(kind.adds_bos());
        let add_eos = metadata.bool(ADD_EOS)?.unwrap_or(false);

        let mut ends = end::by_name(metadata, &names);
        for &token in &ends {
            kinds[token as usize] = TokenKind::Control;
        }
        ends.extend(end::by_key(metadata, names.len())?);
        ends.extend(eos);

        let unknown = token_id(metadata, UNKNOWN_ID, names.len())?;
        let unknown = unknown.or(kind.default_id(0, names.len()));
        Ok(Tokenizer {
            texts: texts(&names, &kinds, &kind),
            named: named_tokens(&names, &kinds),
            merger: match kind {
                Kind::Words(pre) => Merger::Words(Box::new(Words::read(metadata, pre, names)?)),
                Kind::Characters => {
                    let words = Words::of_characters(metadata, names, &kinds, unknown)?;
                    Merger::Words(Box::new(words))
                }
                Kind::Pieces => {
                    let pieces = Pieces::read(metadata, names, &kinds, unknown)?;
                    Merger::Pieces(Box::new(pieces))
                }
            },
            kinds,
            bos,
            eos,
            prefix: added(BOS_ID, add_bos, bos)?,
            suffix: added(EOS_ID, add_eos, eos)?,
            ends,
        })
    }
}

/// Kind of tokenizer, from `tokenizer.ggml.model`.
enum Kind {
    Words(&'static PreTokenizer),
    Characters,
    Pieces,
}

impl Kind {
    fn of(metadata: &Metadata) -> Result<Kind, TokenizerError> {
        match metadata.need_str(MODEL)? {
            "gpt2" => pre_tokenizer(metadata).map(Kind::Words),
            "gemma4" => Ok(Kind::Characters),
            "llama" => Ok(Kind::Pieces),
            other => Err(TokenizerError::Model {
                found: other.to_owned(),
            }),
        }
    }

    /// Returns whether texts begin with BOS if the file does not specify it.
    fn adds_bos(&self) -> bool {
        match self {
            Kind::Words(pre) => pre.add_bos,
            Kind::Characters | Kind::Pieces => true,
        }
    }

    /// Returns the default id of a special token that the file does not list: early SentencePiece
    /// files all used the same ids.
    fn default_id(&self, id: u32, n_tokens: usize) -> Option<u32> {
        match self {
            Kind::Words(_) | Kind::Characters => None,
            Kind::Pieces => Some(id).filter(|&id| (id as usize) < n_tokens),
        }
    }
}

fn pre_tokenizer(metadata: &Metadata) -> Result<&'static PreTokenizer, TokenizerError> {
    let name = metadata.str(PRE)?.unwrap_or("default");
    PreTokenizer::find(name).ok_or_else(|| TokenizerError::PreTokenizer {
        found: name.to_owned(),
        known: PreTokenizer::known(),
    })
}

pub(super) fn missing(key: &str) -> TokenizerError {
    TokenizerError::Key(KeyError::Missing {
        key: key.to_owned(),
    })
}

pub(super) fn element(
    key: &'static str,
    index: usize,
    problem: impl Into<String>,
) -> TokenizerError {
    TokenizerError::Element {
        key,
        index,
        problem: problem.into(),
    }
}

fn token_kinds(metadata: &Metadata, n_tokens: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(types) = metadata.u32s(TOKEN_TYPE)? else {
        return Ok(vec![TokenKind::Normal; n_tokens]);
    };
    check_length(TOKEN_TYPE, n_tokens, types.len())?;
    let kind = |(index, found): (usize, u32)| match found {
        1 => Ok(TokenKind::Normal),
        2 | 3 => Ok(TokenKind::Control),
        4 => Ok(TokenKind::UserDefined),
        0 | 5 => Ok(TokenKind::Unused),
        6 => Ok(TokenKind::Byte),
        _ => Err(element(
            TOKEN_TYPE,
            index,
            format!("expected a type from 0 to 6, found {found}"),
        )),
    };
    types.into_iter().enumerate().map(kind).collect()
}

pub(super) fn check_length(
    key: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), TokenizerError> {
    match found == expected {
        true => Ok(()),
        false => Err(TokenizerError::Length {
            key,
            expected,
            found,
        }),
    }
}

/// Returns the token id of a key.
pub(super) fn token_id(
    metadata: &Metadata,
    key: &str,
    n_tokens: usize,
) -> Result<Option<u32>, TokenizerError> {
    match metadata.u32(key)? {
        Some(id) if id as usize >= n_tokens => Err(TokenizerError::TokenId {
            key: key.to_owned(),
            id,
            n_tokens,
        }),
        id => Ok(id),
    }
}

/// Returns the token to add at an end of texts, if the file asks for one.
fn added(key: &str, wanted: bool, token: Option<u32>) -> Result<Option<u32>, TokenizerError> {
    match (wanted, token) {
        (false, _) => Ok(None),
        (true, Some(token)) => Ok(Some(token)),
        (true, None) => Err(missing(key)),
    }
}

fn named_tokens(names: &Names, kinds: &[TokenKind]) -> Vec<NamedToken> {
    let is_named = |kind| matches!(kind, TokenKind::Control | TokenKind::UserDefined);
    let tokens = (0..).zip(names.iter().zip(kinds));
    let mut named: Vec<NamedToken> = tokens
        .filter(|&(_, (_, &kind))| is_named(kind))
        .map(|(token, (name, &kind))| NamedToken {
            name: name.to_owned(),
            token,
            kind,
        })
        .collect();
    named.sort_by_key(|named| Reverse(named.name.len()));
    named
}

/// Returns the text of each token.
fn texts(names: &Names, kinds: &[TokenKind], kind: &Kind) -> Strings {
    let bytes = |name: &str, token_kind| match (token_kind, kind) {
        (TokenKind::Normal, Kind::Words(_)) => bytes::unspell(name),
        (TokenKind::Normal, Kind::Characters | Kind::Pieces) => {
            name.replace(pieces::SPACE, " ").into_bytes()
        }
        (TokenKind::Control | TokenKind::UserDefined, _) => name.into(),
        (TokenKind::Unused, _) => Vec::new(),
        (TokenKind::Byte, _) => byte_of(name).into_iter().collect(),
    };
    let texts = names.iter().zip(kinds);
    let mut texts: Strings = texts.map(|(name, &kind)| bytes(name, kind)).collect();
    texts.shrink_to_fit();
    texts
}

/// Returns the byte of a token such as `<0x0A>`.
fn byte_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}
