//! [`Names`]: the names of tokens, and lookup by name.

use std::hash::BuildHasher;

use bstr::ByteSlice;
use hashbrown::{DefaultHashBuilder, HashTable};
use schemas::arch::keys::TOKENS;
use schemas::gguf::{Metadata, Strings};

use super::load::{TokenizerError, element, missing};

/// The name of every token, by id, and back. All names are different.
#[derive(Default)]
pub(super) struct Names {
    names: Strings,
    /// Ids by name; the names themselves are stored once.
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Names {
    /// Reads the tokens of a file.
    ///
    /// # Errors
    /// The file has none, a token is not UTF-8, or two are the same.
    pub(super) fn read(metadata: &Metadata) -> Result<Names, TokenizerError> {
        let texts = metadata.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
        let mut names = Names {
            ids: HashTable::with_capacity(texts.len()),
            ..Names::default()
        };
        for (id, text) in texts.iter().enumerate() {
            let name = text.to_str();
            let name = name.map_err(|_| element(TOKENS, id, "not UTF-8"))?;
            match name {
                // Some files have gaps without a name; llama.cpp names them like this.
                "" => names.add(&format!("[EMPTY_{id}]"))?,
                name => names.add(name)?,
            }
        }
        names.names.shrink_to_fit();
        Ok(names)
    }

    fn add(&mut self, name: &str) -> Result<(), TokenizerError> {
        let id = self.names.len();
        if let Some(first) = self.id(name) {
            let problem = format!("{name:?} is token {first} already");
            return Err(element(TOKENS, id, problem));
        }
        self.names.push(name);
        let (names, hasher) = (&self.names, &self.hasher);
        let hash = |id: &u32| hasher.hash_one(names[*id as usize].as_bytes());
        let id = id as u32;
        self.ids.insert_unique(hash(&id), id, hash);
        Ok(())
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Iterates over all names, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter();
        names.map(|name| name.to_str().expect("names have been checked"))
    }

    /// Returns the token with a name.
    pub(super) fn id(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name.as_bytes());
        let is_it = |&id: &u32| self.names[id as usize] == name;
        self.ids.find(hash, is_it).copied()
    }
}
