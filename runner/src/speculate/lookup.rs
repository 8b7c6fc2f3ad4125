//! [`Lookup`]: counts of the tokens that followed each n-gram, and the lookup file in llama.cpp's
//! format: for each n-gram four tokens (-1 after its last one), the number of its followers, and
//! each follower with its count, all as little-endian `i32`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use schemas::input;

/// Longest n-gram.
pub const MAX_LEN: usize = 4;
/// Length of the n-grams of a corpus.
pub const STATIC_LEN: usize = 2;

/// Tokens that followed an n-gram, with their counts.
pub type Followers = BTreeMap<u32, u32>;

/// One to four tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ngram([i32; MAX_LEN]);

impl Ngram {
    /// Fills the places after the last token.
    const NONE: i32 = -1;

    /// Returns the last `len` tokens of a text; `None` if it is shorter.
    pub fn newest(text: &[u32], len: usize) -> Option<Ngram> {
        let start = text.len().checked_sub(len)?;
        let mut ngram = [Self::NONE; MAX_LEN];
        for (place, &token) in ngram.iter_mut().zip(&text[start..]) {
            *place = i32::try_from(token).ok()?;
        }
        Some(Ngram(ngram))
    }

    /// Returns the tokens.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        let tokens = self.0.into_iter();
        tokens.map_while(|token| u32::try_from(token).ok())
    }
}

/// Lookup files, shared by all sequences.
#[derive(Clone, Debug, Default)]
pub struct LookupFiles {
    /// Counts from a large corpus, by token pair.
    pub fixed: Lookup,
    /// Counts from earlier texts.
    pub dynamic: Lookup,
}

/// The followers of each n-gram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup(BTreeMap<Ngram, Followers>);

/// A lookup file cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LookupError {
    /// The operating system reported an error.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("{}: the file is empty, expected n-grams (specrun build-lookup counts them)", path.display())]
    Empty { path: PathBuf },
    /// The file ends within an entry.
    #[error("{}: entry at byte {offset}: the file ends at byte {end}", path.display())]
    Cut {
        path: PathBuf,
        offset: usize,
        end: usize,
    },
    /// A number is out of range.
    #[error("{}: byte {offset}: {what} is {found}, expected {expected}", path.display())]
    Number {
        path: PathBuf,
        offset: usize,
        what: &'static str,
        found: i32,
        expected: String,
    },
}

impl Lookup {
    /// Returns the followers of an n-gram.
    pub fn get(&self, ngram: &Ngram) -> Option<&Followers> {
        self.0.get(ngram)
    }

    /// Iterates over all n-grams, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Ngram, &Followers)> {
        self.0.iter()
    }

    /// Returns the number of n-grams.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns a lower bound of the memory used, in bytes.
    pub fn n_bytes(&self) -> usize {
        let followers = self.0.values().map(BTreeMap::len).sum::<usize>();
        let entry = size_of::<Ngram>() + size_of::<Followers>();
        self.len() * entry + followers * size_of::<(u32, u32)>()
    }

    /// True if there are no n-grams.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts each token from position `start` on as a follower of the n-grams before it.
    pub fn count(&mut self, text: &[u32], start: usize, lens: RangeInclusive<usize>) {
        for i in start..text.len() {
            for len in lens.clone() {
                if let Some(ngram) = Ngram::newest(&text[..i], len) {
                    let count = self.0.entry(ngram).or_default().entry(text[i]).or_default();
                    *count = count.saturating_add(1);
                }
            }
        }
    }

    /// Adds the counts of another lookup.
    pub fn merge(&mut self, other: &Lookup) {
        for (ngram, followers) in &other.0 {
            let own = self.0.entry(*ngram).or_default();
            for (&token, &count) in followers {
                let sum = own.entry(token).or_default();
                *sum = sum.saturating_add(count);
            }
        }
    }

    /// Returns the bytes of the file; equal counts give equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |number: i32| bytes.extend(number.to_le_bytes());
        for (ngram, followers) in &self.0 {
            ngram.0.into_iter().for_each(&mut put);
            put(followers.len() as i32);
            for (&token, &count) in followers {
                put(token as i32);
                put(i32::try_from(count).unwrap_or(i32::MAX));
            }
        }
        bytes
    }

    /// Reads a file made for a vocabulary of `n_vocab` tokens.
    ///
    /// # Errors
    /// The file is unreadable, empty, truncated, or has a number out of range; the error names the
    /// offset.
    pub fn read(path: &Path, n_vocab: usize) -> Result<Lookup, LookupError> {
        let bytes = input::read(path, input::Kind::Stream, input::MAX_WHOLE);
        let bytes = bytes.map_err(|source| LookupError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        if bytes.is_empty() {
            let path = path.to_path_buf();
            return Err(LookupError::Empty { path });
        }
        Lookup::parse(path, &bytes, n_vocab)
    }

    fn parse(path: &Path, bytes: &[u8], n_vocab: usize) -> Result<Lookup, LookupError> {
        let mut lookup = Lookup::default();
        let mut at = 0;
        while at < bytes.len() {
            let entry = at;
            let mut number = |what, range: RangeInclusive<i32>| {
                let Some(&word) = bytes[at..].first_chunk() else {
                    return Err(LookupError::Cut {
                        path: path.to_path_buf(),
                        offset: entry,
                        end: bytes.len(),
                    });
                };
                let found = i32::from_le_bytes(word);
                if !range.contains(&found) {
                    let (min, max) = range.into_inner();
                    return Err(LookupError::Number {
                        path: path.to_path_buf(),
                        offset: at,
                        what,
                        found,
                        expected: format!("{min} to {max}"),
                    });
                }
                at += size_of_val(&word);
                Ok(found)
            };
            let last = i32::try_from(n_vocab).unwrap_or(i32::MAX).saturating_sub(1);
            let mut ngram = [Ngram::NONE; MAX_LEN];
            for (i, token) in ngram.iter_mut().enumerate() {
                // Only the first token is mandatory.
                let min = if i == 0 { 0 } else { Ngram::NONE };
                *token = number("a token", min..=last)?;
            }
            let followers = lookup.0.entry(Ngram(ngram)).or_default();
            for _ in 0..number("the number of followers", 1..=i32::MAX)? {
                let token = number("a token", 0..=last)? as u32;
                let count = number("a count", 1..=i32::MAX)? as u32;
                followers.insert(token, count);
            }
        }
        Ok(lookup)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(numbers: &[i32]) -> Result<Lookup, String> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Lookup::parse(Path::new("x"), &bytes, 10).map_err(|e| e.to_string())
    }

    #[test]
    fn the_file_is_a_list_of_numbers() {
        let mut lookup = Lookup::default();
        lookup.count(&[1, 2, 3, 1, 2, 4], 0, 2..=2);
        let numbers = [
            [1, 2, -1, -1, 2, 3, 1, 4, 1].as_slice(),
            &[2, 3, -1, -1, 1, 1, 1],
            &[3, 1, -1, -1, 1, 2, 1],
        ]
        .concat();
        let bytes: Vec<u8> = numbers.iter().flat_map(|n: &i32| n.to_le_bytes()).collect();
        assert_eq!(lookup.to_bytes(), bytes);
        assert_eq!(parse(&numbers), Ok(lookup));
    }

    #[test]
    fn what_is_broken_is_named() {
        for (numbers, message) in [
            (&[1, 2][..], "x: entry at byte 0: the file ends at byte 8"),
            (
                &[-1, 2, -1, -1, 1, 1, 1],
                "x: byte 0: a token is -1, expected 0 to 9",
            ),
            (
                &[1, 10, -1, -1, 1, 1, 1],
                "x: byte 4: a token is 10, expected -1 to 9",
            ),
            (
                &[1, 2, -1, -1, 0],
                "x: byte 16: the number of followers is 0, expected 1 to 2147483647",
            ),
            (
                &[1, 2, -1, -1, 1, 3, 0],
                "x: byte 24: a count is 0, expected 1 to 2147483647",
            ),
            (
                &[1, 2, -1, -1, i32::MAX, 3, 1],
                "x: entry at byte 0: the file ends at byte 28",
            ),
        ] {
            assert_eq!(parse(numbers), Err(message.to_owned()));
        }
    }

    #[test]
    fn counts_add_up() {
        let mut one = Lookup::default();
        one.count(&[1, 2, 3], 0, 1..=2);
        let mut two = one.clone();
        two.merge(&one);
        let mut twice = Lookup::default();
        twice.count(&[1, 2, 3], 0, 1..=2);
        twice.count(&[1, 2, 3], 0, 1..=2);
        assert_eq!(two, twice);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(text in prop::collection::vec(0..10u32, 0..200)) {
            let mut lookup = Lookup::default();
            lookup.count(&text, 0, 1..=MAX_LEN);
            prop_assert_eq!(Lookup::parse(Path::new("x"), &lookup.to_bytes(), 10).unwrap(), lookup);
        }

        #[test]
        fn any_bytes_are_an_error_or_a_file(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Lookup::parse(Path::new("x"), &bytes, 1000);
        }
    }
}
