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
    /// `tokenizer.json`.
    pub(super) path: PathBuf,
    /// Contents of `tokenizer.json`; empty if there is only `tokenizer.model`.
    pub(super) tokenizer: Map<String, Value>,
    /// `tokenizer_config.json`, if it exists.
    pub(super) config: Option<Map<String, Value>>,
}

impl TokenizerFiles {
    pub(super) fn open(folder: &Path) -> Result<TokenizerFiles, Error> {
        let path = folder.join("tokenizer.json");
        let model = folder.join("tokenizer.model");
        let model = fs::exists(&model).unwrap_or(false).then_some(model);
        if model.is_none() && !fs::exists(&path).unwrap_or(true) {
            let path = folder.to_path_buf();
            return Err(Error::NoTokenizer { path });
        }
        Ok(TokenizerFiles {
            folder: folder.to_path_buf(),
            tokenizer: match model {
                Some(_) => read_optional_object(&path)?.unwrap_or_default(),
                None => read_object(&path)?,
            },
            path,
            model,
            config: read_optional_object(&folder.join("tokenizer_config.json"))?,
        })
    }
}
