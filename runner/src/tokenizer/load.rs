//! From the keys of a file to a [`Tokenizer`].

use std::cmp::Reverse;

use schemas::gguf::{KeyError, Metadata};
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::pieces::{self, Pieces};
use super::split::PreTokenizer;
use super::{Merger, NamedToken, Token, TokenKind, Tokenizer, bytes, end};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
const EOS_ID: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const UNKNOWN_ID: &str = "tokenizer.ggml.unknown_token_id";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// A tokenizer cannot be rebuilt from the metadata.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Another kind of tokenizer.
    #[error("key {MODEL}: expected gpt2 (byte-level BPE) or llama (SentencePiece), found {found}")]
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
    /// Rebuilds the tokenizer of a file. Byte-level BPE (`tokenizer.ggml.model` = `gpt2`) and
    /// SentencePiece (`llama`) are known. A file without `tokenizer.ggml.pre` is read as
    /// `default`, whose words suit no model in particular; one without token types has normal
    /// tokens only.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        let kind = Kind::of(metadata)?;
        let names = token_names(metadata)?;
        let vocab = vocabulary(&names)?;
        let mut kinds = token_kinds(metadata, names.len())?;

        let bos = token_id(metadata, BOS_ID, names.len())?;
        let bos = bos.or(kind.default_id(1, names.len()));
        let eos = token_id(metadata, EOS_ID, names.len())?;
        let eos = eos.or(kind.default_id(2, names.len()));
        let add_bos = metadata.bool(ADD_BOS)?.unwrap_or(kind.adds_bos());
        let add_eos = metadata.bool(ADD_EOS)?.unwrap_or(false);

        let mut ends = end::by_name(metadata, &vocab);
        for &token in &ends {
            kinds[token as usize] = TokenKind::Control;
        }
        ends.extend(end::by_key(metadata, names.len())?);
        ends.extend(eos);

        let tokens = tokens(&names, &kinds, &kind);
        Ok(Tokenizer {
            named: named_tokens(&names, &kinds),
            merger: match kind {
                Kind::Words(pre) => words(metadata, pre, vocab)?,
                Kind::Pieces => Merger::Pieces(Box::new(pieces(metadata, vocab, &kinds)?)),
            },
            tokens,
            bos,
            eos,
            prefix: added(BOS_ID, add_bos, bos)?,
            suffix: added(EOS_ID, add_eos, eos)?,
            ends,
        })
    }
}

/// `tokenizer.ggml.model`.
enum Kind {
    Words(&'static PreTokenizer),
    Pieces,
}

impl Kind {
    fn of(metadata: &Metadata) -> Result<Kind, TokenizerError> {
        match metadata.need_str(MODEL)? {
            "gpt2" => pre_tokenizer(metadata).map(Kind::Words),
            "llama" => Ok(Kind::Pieces),
            other => Err(TokenizerError::Model {
                found: other.to_owned(),
            }),
        }
    }

    /// Whether texts begin with BOS where the file does not say.
    fn adds_bos(&self) -> bool {
        match self {
            Kind::Words(pre) => pre.add_bos,
            Kind::Pieces => true,
        }
    }

    /// The token of a role that the file does not name: in the first files of pieces, always the
    /// same one.
    fn default_id(&self, id: u32, n_tokens: usize) -> Option<u32> {
        match self {
            Kind::Words(_) => None,
            Kind::Pieces => Some(id).filter(|&id| (id as usize) < n_tokens),
        }
    }
}

fn words(metadata: &Metadata, pre: &PreTokenizer, vocab: Vocab) -> Result<Merger, TokenizerError> {
    let merges = merges(metadata, &vocab)?;
    let bpe = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .expect("both sides of each merge and its result are in the vocabulary");
    Ok(Merger::Words {
        splitter: pre.splitter(),
        bpe: Box::new(bpe),
    })
}

fn pieces(
    metadata: &Metadata,
    vocab: Vocab,
    kinds: &[TokenKind],
) -> Result<Pieces, TokenizerError> {
    let scores = metadata.f32s(SCORES)?.ok_or_else(|| missing(SCORES))?;
    check_length(SCORES, kinds.len(), scores.len())?;
    let byte = |byte: u8| {
        let id = vocab.get(&format!("<0x{byte:02X}>")).copied();
        id.filter(|&id| kinds[id as usize] == TokenKind::Byte)
    };
    let bytes = std::array::from_fn(|i| byte(i as u8));
    let unknown = token_id(metadata, UNKNOWN_ID, kinds.len())?;
    let is_normal = |id: u32| kinds[id as usize] == TokenKind::Normal;
    Ok(Pieces {
        bytes,
        unknown: unknown.or(Kind::Pieces.default_id(0, kinds.len())),
        scores: scores.to_vec(),
        space_prefix: metadata.bool(ADD_SPACE_PREFIX)?.unwrap_or(true),
        ids: vocab.into_iter().filter(|&(_, id)| is_normal(id)).collect(),
    })
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

fn check_length(key: &'static str, expected: usize, found: usize) -> Result<(), TokenizerError> {
    match found == expected {
        true => Ok(()),
        false => Err(TokenizerError::Length {
            key,
            expected,
            found,
        }),
    }
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

fn tokens(names: &[String], kinds: &[TokenKind], kind: &Kind) -> Vec<Token> {
    let bytes = |name: &str, token_kind| match (token_kind, kind) {
        (TokenKind::Normal, Kind::Words(_)) => bytes::unspell(name),
        (TokenKind::Normal, Kind::Pieces) => name.replace(pieces::SPACE, " ").into_bytes(),
        (TokenKind::Control | TokenKind::UserDefined, _) => name.into(),
        (TokenKind::Unused, _) => Vec::new(),
        (TokenKind::Byte, _) => byte_of(name).into_iter().collect(),
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

/// The byte that `<0x0A>` stands for.
fn byte_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}
