//! The tokenizer files of a checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::Error;
use crate::hf_config::{read_object, read_optional_object};

/// The tokenizer files of a checkpoint.
pub(super) struct TokenizerFiles {
    pub(super) folder: PathBuf,
    /// `tokenizer.model`, if it exists.
    pub(super) model: Option<PathBuf>,
    /// `tiktoken.model` or `*.tiktoken`, if it exists.
    pub(super) ranks: Option<PathBuf>,
    /// `tokenizer.json`.
    pub(super) path: PathBuf,
    /// Contents of `tokenizer.json`; empty if there is only another file.
    pub(super) tokenizer: Map<String, Value>,
    /// `tokenizer_config.json`, if it exists.
    pub(super) config: Option<Map<String, Value>>,
}

impl TokenizerFiles {
    pub(super) fn open(folder: &Path) -> Result<TokenizerFiles, Error> {
        let path = folder.join("tokenizer.json");
        let model = folder.join("tokenizer.model");
        let model = fs::exists(&model).unwrap_or(false).then_some(model);
        let ranks = find_ranks(folder);
        let has_other = model.is_some() || ranks.is_some();
        if !has_other && !fs::exists(&path).unwrap_or(true) {
            let path = folder.to_path_buf();
            return Err(Error::NoTokenizer { path });
        }
        Ok(TokenizerFiles {
            folder: folder.to_path_buf(),
            tokenizer: match has_other {
                true => read_optional_object(&path)?.unwrap_or_default(),
                false => read_object(&path)?,
            },
            path,
            model,
            ranks,
            config: read_optional_object(&folder.join("tokenizer_config.json"))?,
        })
    }
}

/// Returns the file of tiktoken ranks in a folder: of several, the first by name.
fn find_ranks(folder: &Path) -> Option<PathBuf> {
    let named = folder.join("tiktoken.model");
    if fs::exists(&named).unwrap_or(false) {
        return Some(named);
    }
    let paths = fs::read_dir(folder).ok()?.flatten();
    let paths = paths.map(|entry| entry.path());
    let is_ranks = |path: &PathBuf| path.extension().is_some_and(|e| e == "tiktoken");
    paths.filter(is_ranks).min()
}
