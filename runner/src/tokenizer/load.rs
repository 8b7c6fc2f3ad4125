//! From the keys of a file to a [`Tokenizer`].

use std::cmp::Reverse;

use schemas::gguf::{KeyError, Metadata};
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::split::PreTokenizer;
use super::{NamedToken, Token, TokenKind, Tokenizer, bytes, end};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
const EOS_ID: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// A tokenizer cannot be rebuilt from the metadata.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Another kind of tokenizer.
    #[error("key {MODEL}: expected gpt2 (byte-level BPE), found {found}")]
    Model {
        /// The kind.
        found: String,
    },
    /// Words are cut in a way that is not known here.
    #[error("key {PRE}: unknown pre-tokenizer {found}, known are {known}")]
    PreTokenizer {
        /// The name in the file.
        found: String,
        /// All names that are known.
        known: String,
    },
    /// The arrays of a vocabulary do not go together.
    #[error("key {key}: expected {expected} elements, as in {TOKENS}, found {found}")]
    Length {
        /// The key of the array.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of elements.
        found: usize,
    },
    /// An element of an array means nothing.
    #[error("key {key}: element {index}: {problem}")]
    Element {
        /// The key of the array.
        key: &'static str,
        /// From 0.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A key names a token that does not exist.
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
    /// Rebuilds the tokenizer of a file. Only byte-level BPE (`tokenizer.ggml.model` = `gpt2`) is
    /// known. A file without `tokenizer.ggml.pre` is read as `default`, whose words suit no model
    /// in particular; one without token types has normal tokens only.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        let model = metadata.need_str(MODEL)?;
        if model != "gpt2" {
            return Err(TokenizerError::Model {
                found: model.to_owned(),
            });
        }
        let pre = pre_tokenizer(metadata)?;
        let names = token_names(metadata)?;
        let vocab = vocabulary(&names)?;
        let merges = merges(metadata, &vocab)?;
        let mut kinds = token_kinds(metadata, names.len())?;

        let bos = token_id(metadata, BOS_ID, names.len())?;
        let eos = token_id(metadata, EOS_ID, names.len())?;
        let add_bos = metadata.bool(ADD_BOS)?.unwrap_or(pre.add_bos);
        let add_eos = metadata.bool(ADD_EOS)?.unwrap_or(false);

        let mut ends = end::by_name(metadata, &vocab);
        for &token in &ends {
            kinds[token as usize] = TokenKind::Control;
        }
        ends.extend(end::by_key(metadata, names.len())?);

        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .expect("both sides of each merge and its result are in the vocabulary");
        Ok(Tokenizer {
            bpe,
            splitter: pre.splitter(),
            named: named_tokens(&names, &kinds),
            tokens: tokens(&names, &kinds),
            bos,
            eos,
            prefix: added(BOS_ID, add_bos, bos)?,
            suffix: added(EOS_ID, add_eos, eos)?,
            ends,
        })
    }
}

fn pre_tokenizer(metadata: &Metadata) -> Result<&'static PreTokenizer, TokenizerError> {
    let name = metadata.str(PRE)?.unwrap_or("default");
    PreTokenizer::find(name).ok_or_else(|| TokenizerError::PreTokenizer {
        found: name.to_owned(),
        known: PreTokenizer::known(),
    })
}

fn missing(key: &str) -> TokenizerError {
    TokenizerError::Key(KeyError::Missing {
        key: key.to_owned(),
    })
}

fn element(key: &'static str, index: usize, problem: impl Into<String>) -> TokenizerError {
    TokenizerError::Element {
        key,
        index,
        problem: problem.into(),
    }
}

/// The spelling of every token, in order of id.
fn token_names(metadata: &Metadata) -> Result<Vec<String>, TokenizerError> {
    let texts = metadata.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
    let mut names = Vec::with_capacity(texts.len());
    for (id, text) in texts.iter().enumerate() {
        let name = std::str::from_utf8(text).map_err(|_| element(TOKENS, id, "not UTF-8"))?;
        names.push(match name {
            // Some files have gaps without text; the peer names them so.
            "" => format!("[EMPTY_{id}]"),
            name => name.to_owned(),
        });
    }
    Ok(names)
}

fn vocabulary(names: &[String]) -> Result<Vocab, TokenizerError> {
    let mut vocab = Vocab::default();
    for (id, name) in (0u32..).zip(names) {
        if let Some(first) = vocab.insert(name.clone(), id) {
            let problem = format!("{name:?} is token {first} already");
            return Err(element(TOKENS, id as usize, problem));
        }
    }
    Ok(vocab)
}

fn token_kinds(metadata: &Metadata, n_tokens: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(types) = metadata.u32s(TOKEN_TYPE)? else {
        return Ok(vec![TokenKind::Normal; n_tokens]);
    };
    if types.len() != n_tokens {
        return Err(TokenizerError::Length {
            key: TOKEN_TYPE,
            expected: n_tokens,
            found: types.len(),
        });
    }
    let kind = |(index, found): (usize, u32)| match found {
        1 => Ok(TokenKind::Normal),
        2 | 3 => Ok(TokenKind::Control),
        4 => Ok(TokenKind::UserDefined),
        0 | 5 => Ok(TokenKind::Unused),
        _ => Err(element(
            TOKEN_TYPE,
            index,
            format!("expected a type from 0 to 5, found {found}"),
        )),
    };
    types.into_iter().enumerate().map(kind).collect()
}

/// Pairs of tokens to merge, the most urgent first.
fn merges(metadata: &Metadata, vocab: &Vocab) -> Result<Merges, TokenizerError> {
    let texts = metadata.strings(MERGES)?.ok_or_else(|| missing(MERGES))?;
    let mut merges = Merges::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let pair = std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.split_once(' '));
        let Some((left, right)) = pair else {
            return Err(element(MERGES, index, "not two texts with a space between"));
        };
        for part in [left, right, &format!("{left}{right}")] {
            if !vocab.contains_key(part) {
                return Err(element(MERGES, index, format!("{part:?} is no token")));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

/// The token that a key names.
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

/// The token to put around texts, if the file asks for one.
fn added(key: &str, wanted: bool, token: Option<u32>) -> Result<Option<u32>, TokenizerError> {
    match (wanted, token) {
        (false, _) => Ok(None),
        (true, Some(token)) => Ok(Some(token)),
        (true, None) => Err(missing(key)),
    }
}

fn named_tokens(names: &[String], kinds: &[TokenKind]) -> Vec<NamedToken> {
    let mut named: Vec<NamedToken> = (0..)
        .zip(names.iter().zip(kinds))
        .filter(|(_, (_, kind))| matches!(kind, TokenKind::Control | TokenKind::UserDefined))
        .map(|(token, (name, &kind))| NamedToken {
            name: name.clone(),
            token,
            kind,
        })
        .collect();
    named.sort_by_key(|named| Reverse(named.name.len()));
    named
}

fn tokens(names: &[String], kinds: &[TokenKind]) -> Vec<Token> {
    let bytes = |name: &str, kind| match kind {
        TokenKind::Normal => bytes::unspell(name),
        TokenKind::Control | TokenKind::UserDefined => name.into(),
        TokenKind::Unused => Vec::new(),
    };
    names
        .iter()
        .zip(kinds)
        .map(|(name, &kind)| Token {
            kind,
            bytes: bytes(name, kind),
        })
        .collect()
}
