//! BPE: the bytes of each word, or the characters of a text, are merged in the order of the trained merge
//! list.

use std::cmp::Reverse;
use std::hash::BuildHasher;

use bstr::ByteSlice;
use hashbrown::{DefaultHashBuilder, HashTable};
use schemas::gguf::Metadata;

use super::load::{TokenizerError, element, missing};
use super::merge::merge;
use super::names::Names;
use super::pieces::SPACE;
use super::split::{PreTokenizer, Splitter};
use super::{TokenKind, bytes};

pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// Splits texts into words, and words into tokens.
pub(super) struct Words {
    alphabet: Alphabet,
    /// The token of each byte.
    bytes: [Option<u32>; 256],
    merges: Merges,
}

/// The symbols that are merged.
enum Alphabet {
    /// Bytes of words.
    Bytes {
        splitter: Splitter,
        /// The vocabulary, if a word that is a token is not merged (`ignore_merges`).
        whole: Option<Names>,
    },
    /// Characters of the whole text; the bytes of those without a token.
    Characters {
        names: Names,
        /// The token for characters without a token, if there are no byte tokens.
        unknown: Option<u32>,
    },
}

impl Words {
    /// Reads the merges of a file.
    ///
    /// # Errors
    /// There are none, or one refers to something that is not a token.
    pub(super) fn read(
        metadata: &Metadata,
        pre: &PreTokenizer,
        names: Names,
    ) -> Result<Words, TokenizerError> {
        Ok(Words {
            merges: Merges::read(metadata, &names)?,
            bytes: std::array::from_fn(|byte| {
                names.id(bytes::spelled(byte as u8).encode_utf8(&mut [0; 4]))
            }),
            alphabet: Alphabet::Bytes {
                splitter: pre.splitter(),
                whole: pre.ignore_merges.then_some(names),
            },
        })
    }

    /// Reads the merges of a file whose merges join characters.
    ///
    /// # Errors
    /// There are none, or one refers to something that is not a token.
    pub(super) fn of_characters(
        metadata: &Metadata,
        names: Names,
        kinds: &[TokenKind],
        unknown: Option<u32>,
    ) -> Result<Words, TokenizerError> {
        let byte = |byte: u8| {
            let id = names.id(&format!("<0x{byte:02X}>"));
            id.filter(|&id| kinds[id as usize] == TokenKind::Byte)
        };
        Ok(Words {
            merges: Merges::read(metadata, &names)?,
            bytes: std::array::from_fn(|i| byte(i as u8)),
            alphabet: Alphabet::Characters { names, unknown },
        })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, text: &str, tokens: &mut Vec<u32>) {
        match &self.alphabet {
            Alphabet::Bytes { splitter, whole } => {
                for word in splitter.split(text) {
                    let whole = whole.as_ref();
                    match whole.and_then(|names| names.id(&bytes::spell(word))) {
                        Some(token) => tokens.push(token),
                        None => tokens.extend(self.merge(self.byte_tokens(word))),
                    }
                }
            }
            Alphabet::Characters { names, unknown } => {
                let text = text.replace(' ', SPACE);
                let mut symbols = Vec::with_capacity(text.len());
                for character in text.chars() {
                    let mut buffer = [0; 4];
                    let character = &*character.encode_utf8(&mut buffer);
                    let start = symbols.len();
                    match names.id(character) {
                        Some(token) => symbols.push(token),
                        None => symbols.extend(self.byte_tokens(character)),
                    }
                    if symbols.len() == start {
                        symbols.extend(unknown);
                    }
                }
                tokens.extend(self.merge(symbols.into_iter()));
            }
        }
    }

    /// Returns the tokens of a text's bytes.
    fn byte_tokens(&self, text: &str) -> impl Iterator<Item = u32> {
        let bytes = text.bytes();
        bytes.filter_map(|byte| self.bytes[usize::from(byte)])
    }

    /// Merges symbols to tokens.
    fn merge(&self, symbols: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
        merge(symbols, |left, right| {
            let (place, token) = self.merges.find(left, right)?;
            Some((Reverse(place), token))
        })
    }
}

/// Pairs of tokens and their merged token, in the order of the list: earlier ones have higher
/// priority.
#[derive(Default)]
struct Merges {
    list: Vec<Merge>,
    /// Indices in the list by pair.
    places: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

struct Merge {
    left: u32,
    right: u32,
    token: u32,
}

impl Merges {
    fn read(metadata: &Metadata, names: &Names) -> Result<Merges, TokenizerError> {
        let texts = metadata.strings(MERGES)?.ok_or_else(|| missing(MERGES))?;
        let mut merges = Merges::with_capacity(texts.len());
        let mut both = String::new();
        for (index, text) in texts.iter().enumerate() {
            let pair = text.to_str().ok().and_then(|text| text.split_once(' '));
            let Some((left, right)) = pair else {
                return Err(element(MERGES, index, "not two texts with a space between"));
            };
            let id = |name: &str| {
                let id = names.id(name);
                id.ok_or_else(|| {
                    element(MERGES, index, format!("{name:?} is not in the vocabulary"))
                })
            };
            both.clear();
            both.extend([left, right]);
            merges.push(id(left)?, id(right)?, id(&both)?);
        }
        Ok(merges)
    }

    fn with_capacity(n: usize) -> Merges {
        Merges {
            list: Vec::with_capacity(n),
            places: HashTable::with_capacity(n),
            ..Merges::default()
        }
    }

    /// Adds a pair; if it occurs twice, the last one counts.
    fn push(&mut self, left: u32, right: u32, token: u32) {
        let place = self.list.len() as u32;
        self.list.push(Merge { left, right, token });
        let (list, hasher) = (&self.list, &self.hasher);
        let pair = |&place: &u32| (list[place as usize].left, list[place as usize].right);
        let hash = |place: &u32| hasher.hash_one(pair(place));
        let is_it = |other: &u32| pair(other) == (left, right);
        let entry = self.places.entry(hash(&place), is_it, hash);
        entry.insert(place);
    }

    /// Returns the index of a pair in the list, and its merged token.
    fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let hash = self.hasher.hash_one((left, right));
        let merge = |place: u32| &self.list[place as usize];
        let is_it = |&place: &u32| (merge(place).left, merge(place).right) == (left, right);
        let &place = self.places.find(hash, is_it)?;
        Some((place, merge(place).token))
    }
}
