//! `config.json`, with typed reads. Errors name the file and the field.
//!
//! llama.cpp's converter reads configs through the transformers library, which collects the RoPE parameters
//! in one place and fills absent fields with its defaults. This module does the former, `arch` the latter.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemas::input;
use serde_json::{Map, Value};

use crate::error::Error;

/// Reads a regular file up to a size limit.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    input::read(path, input::Kind::File, input::MAX_WHOLE).map_err(|source| Error::Io {
        path: path.to_path_buf(),
        source,
    })
}

/// Reads a JSON file that contains an object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, Error> {
    let bytes = read_file(path)?;
    let parsed = serde_json::from_slice(&bytes).or_else(|error| {
        let finite = without_non_finite(&bytes);
        serde_json::from_slice(&finite).map_err(|_| error)
    });
    parsed.map_err(|source| Error::Json {
        path: path.to_path_buf(),
        source,
    })
}

/// Replaces `Infinity` and `NaN`, which Python writes although JSON has no such numbers, by null.
fn without_non_finite(bytes: &[u8]) -> Vec<u8> {
    const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut out = Vec::with_capacity(bytes.len());
    let (mut at, mut in_text) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let found = NUMBERS
            .iter()
            .find(|number| bytes[at..].starts_with(number));
        if let (Some(number), false) = (found, in_text) {
            out.extend(b"null");
            at += number.len();
            continue;
        }
        let n = if in_text && byte == b'\\' { 2 } else { 1 };
        in_text ^= byte == b'"';
        out.extend(bytes[at..].iter().take(n));
        at += n;
    }
    out
}

/// Like [`read_object`], but the file may be absent.
pub(crate) fn read_optional_object(path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    match fs::exists(path) {
        Ok(false) => Ok(None),
        _ => read_object(path).map(Some),
    }
}

/// Typed access to the fields of a JSON object. Where several names are given, the first one present
/// counts; null counts as absent.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    path: PathBuf,
    /// Prefix of field names in messages.
    prefix: &'static str,
    pub(crate) map: Map<String, Value>,
}

impl Fields {
    fn find(&self, names: &[&str]) -> Option<(String, &Value)> {
        let (name, value) = names
            .iter()
            .find_map(|&name| Some((name, self.map.get(name)?)))?;
        (!value.is_null()).then(|| (format!("{}{name}", self.prefix), value))
    }

    /// Returns a value converted by `read`, or an error that states what was expected.
    pub(crate) fn typed<T>(
        &self,
        names: &[&str],
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some((field, value)) = self.find(names) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| Error::Field {
            path: self.path.clone(),
            field,
            expected: expected.to_owned(),
            found: shorten(value),
        })
    }

    /// Returns the raw value.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }

    /// Returns an unsigned integer below 2^32.
    pub(crate) fn u32(&self, names: &[&str]) -> Result<Option<u32>, Error> {
        self.typed(names, "an integer from 0 to 4294967295", |v| {
            v.as_u64()?.try_into().ok()
        })
    }

    /// Returns a number.
    pub(crate) fn f64(&self, names: &[&str]) -> Result<Option<f64>, Error> {
        self.typed(names, "a number", Value::as_f64)
    }

    /// Returns a boolean.
    pub(crate) fn bool(&self, names: &[&str]) -> Result<Option<bool>, Error> {
        self.typed(names, "true or false", Value::as_bool)
    }

    /// Returns a text.
    pub(crate) fn str(&self, names: &[&str]) -> Result<Option<String>, Error> {
        self.typed(names, "text", |v| v.as_str().map(str::to_owned))
    }

    /// Returns a list of texts.
    pub(crate) fn strings(&self, names: &[&str]) -> Result<Option<Vec<String>>, Error> {
        self.typed(names, "a list of texts", |v| {
            v.as_array()?
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect()
        })
    }

    /// Returns a list of integers.
    pub(crate) fn i32s(&self, names: &[&str]) -> Result<Option<Vec<i32>>, Error> {
        self.typed(names, "a list of integers", |v| {
            v.as_array()?
                .iter()
                .map(|item| item.as_i64()?.try_into().ok())
                .collect()
        })
    }

    /// Like [`Fields::u32`], but the field is required.
    pub(crate) fn need_u32(&self, name: &str) -> Result<u32, Error> {
        self.u32(&[name])?.ok_or_else(|| self.missing(name))
    }

    /// Like [`Fields::f64`], but the field is required.
    pub(crate) fn need_f64(&self, name: &str) -> Result<f64, Error> {
        self.f64(&[name])?.ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> Error {
        Error::MissingField {
            path: self.path.clone(),
            field: format!("{}{name}", self.prefix),
        }
    }
}

/// Shortens a value for messages.
fn shorten(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// Object with the settings of a draft's only layer.
const LAYER_CONFIG: &str = "transformer_layer_config";
/// Objects of a config whose fields override those of the root.
const NESTED: [&str; 2] = ["text_config", LAYER_CONFIG];

/// A checkpoint's `config.json`.
#[derive(Debug)]
pub(crate) struct HfConfig {
    /// The checkpoint's folder.
    pub(crate) folder: PathBuf,
    /// The model's name, if it differs from the folder's.
    pub(crate) name: Option<String>,
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// The file's root object, unmodified.
    pub(crate) root: Map<String, Value>,
    /// Fields of the text model: those of nested objects override those of the root; defaults fill the
    /// rest.
    pub(crate) fields: Fields,
    /// RoPE parameters.
    pub(crate) rope: Fields,
}

impl HfConfig {
    /// Reads `config.json` of a checkpoint.
    pub(crate) fn open(folder: &Path) -> Result<HfConfig, Error> {
        let path = folder.join("config.json");
        if folder.is_file() {
            let path = folder.to_path_buf();
            return Err(Error::NotAFolder { path });
        }
        if fs::metadata(&path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            if let Some(adapter) = read_optional_object(&folder.join("adapter_config.json"))? {
                let base = adapter
                    .get("base_model_name_or_path")
                    .and_then(Value::as_str);
                return Err(Error::Adapter {
                    path: folder.to_path_buf(),
                    base: base.map(str::to_owned),
                });
            }
            return Err(Error::NoCheckpoint {
                path: folder.to_path_buf(),
                what: match folder.is_dir() {
                    true => "has no config.json",
                    false => "does not exist",
                },
            });
        }
        let root = read_object(&path)?;
        let mut map = root.clone();
        for name in NESTED {
            let Some(value) = map.remove(name).filter(|value| !value.is_null()) else {
                continue;
            };
            let Value::Object(mut value) = value else {
                return Err(Error::Field {
                    path,
                    field: name.to_owned(),
                    expected: "an object".to_owned(),
                    found: shorten(&value),
                });
            };
            // `architectures` of the layer's config is not the draft's class.
            if name == LAYER_CONFIG {
                value.remove("architectures");
            }
            map.extend(value);
        }
        Ok(HfConfig {
            folder: folder.to_path_buf(),
            name: None,
            rope: Fields {
                path: path.clone(),
                prefix: "rope_parameters.",
                map: rope_parameters(&map),
            },
            fields: Fields {
                path: path.clone(),
                prefix: "",
                map,
            },
            path,
            root,
        })
    }

    /// Returns the error for a setting that cannot be expressed in a file.
    pub(crate) fn unsupported(&self, field: &'static str, found: impl ToString) -> Error {
        Error::UnsupportedSetting {
            path: self.path.clone(),
            field,
            found: found.to_string(),
        }
    }

    /// Returns the fields of a nested object, if there is one of that name.
    pub(crate) fn nested(&self, name: &'static str) -> Result<Option<Fields>, Error> {
        let read = |value: &Value| value.as_object().cloned();
        let map = self.fields.typed(&[name], "an object", read)?;
        Ok(map.map(|map| Fields {
            path: self.path.clone(),
            prefix: "",
            map,
        }))
    }

    /// Returns the model's class: the first of `architectures`, preferably the text model's own.
    pub(crate) fn class(&self) -> Result<String, Error> {
        let missing = || Error::MissingField {
            path: self.path.clone(),
            field: "architectures".to_owned(),
        };
        let classes = self.fields.strings(&["architectures"])?;
        classes
            .and_then(|classes| classes.into_iter().next())
            .ok_or_else(missing)
    }
}

/// RoPE base of sliding-window layers, in addition to that of the other layers.
pub(crate) const SLIDING_THETA: &str = "sliding_rope_theta";

/// Context length before RoPE scaling, in positions.
pub(crate) const ORIGINAL_CONTEXT: &str = "original_max_position_embeddings";

/// Collects the RoPE parameters from the old and the new layout: `rope_scaling` has
/// precedence over `rope_parameters`, and nested fields over outer ones.
fn rope_parameters(map: &Map<String, Value>) -> Map<String, Value> {
    let mut rope = ["rope_scaling", "rope_parameters"]
        .iter()
        .find_map(|&field| map.get(field)?.as_object().filter(|map| !map.is_empty()))
        .cloned()
        .unwrap_or_default();
    // If there is one object per kind of layer, the common parameters are those of full attention.
    let of_kind = |kind: &str| rope.get(kind).and_then(Value::as_object).cloned();
    let (full, sliding) = (of_kind("full_attention"), of_kind("sliding_attention"));
    let theta = sliding.as_ref().and_then(|rope| rope.get("rope_theta"));
    let local = ["rope_local_base_freq", "swa_rope_theta"];
    let local = local.iter().find_map(|field| map.get(*field));
    // A list has the base of the first layer, which has full attention, then those of the others.
    let bases = map.get("rope_theta").and_then(Value::as_array);
    let second = bases.and_then(|bases| bases.get(1));
    let theta = theta.or(local).or(second).cloned();
    rope = full.unwrap_or(rope);
    if let Some(theta) = theta {
        rope.insert(SLIDING_THETA.to_owned(), theta);
    }
    for field in ["rope_theta", "partial_rotary_factor"] {
        let value = map.get(field);
        let value = value.map(|value| value.get(0).unwrap_or(value));
        if let (false, Some(value)) = (rope.contains_key(field), value) {
            rope.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(value) = map.get(ORIGINAL_CONTEXT) {
        rope.insert(ORIGINAL_CONTEXT.to_owned(), value.clone());
    }
    if !rope.contains_key("rope_type") {
        let kind = rope.get("type").cloned().unwrap_or("default".into());
        rope.insert("rope_type".to_owned(), kind);
    }
    rope
}
