//! [`TypeRule`] and [`KeyOverride`]: options by name, in the syntax of `llama-quantize`.

use std::str::FromStr;

use fancy_regex::Regex;
use kernels::types::codec;
use schemas::gguf::{DType, Value};

use crate::nearest::suggest;

/// Maximum length of keys and texts in bytes, as in llama.cpp.
const MAX_TEXT_LEN: usize = 127;

/// The type of tensors whose names match a pattern; parsed from `REGEX=TYPE`.
#[derive(Clone, Debug)]
pub struct TypeRule {
    regex: Regex,
    /// The type.
    pub dtype: DType,
}

/// Error of a rule or an override.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// The text has no `=` or an empty pattern.
    #[error("{found:?}: expected REGEX=TYPE")]
    Form {
        /// The text.
        found: String,
    },
    /// The pattern is not a valid regular expression.
    #[error("{found:?}: pattern {pattern:?}, {reason}")]
    Regex {
        /// The text.
        found: String,
        /// The pattern.
        pattern: String,
        /// Position and cause of the error.
        reason: String,
    },
    /// The type is not one that weights can be quantized to.
    #[error("{0}")]
    Type(#[from] UnknownType),
    /// The override is invalid.
    #[error("{found:?}: expected KEY=TYPE:VALUE, {expected}")]
    Override {
        /// The text.
        found: String,
        /// The expected form.
        expected: &'static str,
    },
}

/// Error for a name that is not a type that weights can be quantized to.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("element type {found:?}{}: expected one of {}", self.fault(), type_names().join(", "))]
pub struct UnknownType {
    /// The name.
    pub found: String,
}

impl UnknownType {
    fn fault(&self) -> String {
        match DType::by_name(&self.found) {
            Some(_) => " is not a type of weights".to_owned(),
            None => suggest(&self.found, type_names().iter().map(String::as_str)),
        }
    }
}

fn type_names() -> Vec<String> {
    let types = DType::all().filter(|&dtype| codec(dtype).is_some());
    types.map(|dtype| dtype.to_string()).collect()
}

/// Parses the name of a type that weights can be quantized to, case-insensitively.
///
/// # Errors
/// There is no such type, or it cannot be encoded.
pub fn parse_type(name: &str) -> Result<DType, UnknownType> {
    let dtype = DType::by_name(name).filter(|&dtype| codec(dtype).is_some());
    dtype.ok_or_else(|| UnknownType {
        found: name.to_owned(),
    })
}

impl FromStr for TypeRule {
    type Err = RuleError;

    /// Splits at the first `=`. The pattern is converted to lower case, as in llama.cpp: `\S`
    /// becomes `\s`.
    fn from_str(text: &str) -> Result<TypeRule, RuleError> {
        let found = || text.to_owned();
        let parts = text.split_once('=').filter(|(regex, _)| !regex.is_empty());
        let (regex, dtype) = parts.ok_or_else(|| RuleError::Form { found: found() })?;
        let dtype = parse_type(dtype)?;
        let compiled = Regex::new(&regex.to_ascii_lowercase());
        let compiled = compiled.map_err(|e| RuleError::Regex {
            found: found(),
            pattern: regex.to_owned(),
            reason: regex_reason(&e),
        })?;
        Ok(TypeRule {
            regex: compiled,
            dtype,
        })
    }
}

/// Describes an error of a pattern, with its position in bytes from 0.
fn regex_reason(error: &fancy_regex::Error) -> String {
    match error {
        fancy_regex::Error::ParseError(at, error) => format!("byte {at}: {error}"),
        other => other.to_string(),
    }
}

impl TypeRule {
    /// Checks whether the pattern matches anywhere in the name. Fails if matching exceeds the
    /// backtracking limit.
    pub(crate) fn matches(&self, name: &str) -> Result<bool, String> {
        self.regex.is_match(name).map_err(|e| e.to_string())
    }

    /// Returns the pattern.
    pub(crate) fn pattern(&self) -> &str {
        self.regex.as_str()
    }
}

/// A value for a metadata key; parsed from `KEY=TYPE:VALUE`, TYPE one of int, float, bool and str.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyOverride {
    /// The key.
    pub key: String,
    /// The value: u32 for int (its absolute value), f32 for float.
    pub value: Value,
}

impl FromStr for KeyOverride {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<KeyOverride, RuleError> {
        let error = |expected| RuleError::Override {
            found: text.to_owned(),
            expected,
        };
        let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, typed) = parts.ok_or_else(|| error("a key and a value"))?;
        let typed = typed.split_once(':');
        let (kind, value) = typed.ok_or_else(|| error("a type before the value"))?;
        if key.len() > MAX_TEXT_LEN {
            return Err(error("a key of at most 127 bytes"));
        }
        let value = match kind {
            "int" => {
                let value = value.parse::<i64>().ok();
                let value = value.and_then(|v| u32::try_from(v.unsigned_abs()).ok());
                value
                    .map(Value::U32)
                    .ok_or_else(|| error("an integer of 32 bits"))?
            }
            "float" => {
                let value = value.parse::<f64>().ok();
                value
                    .map(|v| Value::F32(v as f32))
                    .ok_or_else(|| error("a number"))?
            }
            "bool" => {
                let value = value.parse::<bool>().ok();
                value
                    .map(Value::Bool)
                    .ok_or_else(|| error("true or false"))?
            }
            "str" if value.len() > MAX_TEXT_LEN => {
                return Err(error("a text of at most 127 bytes"));
            }
            "str" => value.into(),
            _ => return Err(error("the type int, float, bool or str")),
        };
        Ok(KeyOverride {
            key: key.to_owned(),
            value,
        })
    }
}
