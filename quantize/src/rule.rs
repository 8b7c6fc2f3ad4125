//! [`TypeRule`] and [`KeyOverride`]: what a user asks for by name, in the spelling of
//! `llama-quantize`.

use std::str::FromStr;

use fancy_regex::Regex;
use kernels::quant::quant_type;
use schemas::gguf::{DType, Value};

use crate::nearest::suggest;

/// The longest key and the longest text that the peer takes.
const MAX_TEXT_LEN: usize = 127;

/// Tensors whose names match get this type; read from `REGEX=TYPE`.
#[derive(Clone, Debug)]
pub struct TypeRule {
    regex: Regex,
    /// The type.
    pub dtype: DType,
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// No two parts.
    #[error("{found:?}: expected REGEX=TYPE")]
    Form {
        /// The text.
        found: String,
    },
    /// No regular expression.
    #[error("{found:?}: pattern {pattern:?}, {reason}")]
    Regex {
        /// The text.
        found: String,
        /// The part that should be a regular expression.
        pattern: String,
        /// Where it fails, and why.
        reason: String,
    },
    /// No type that weights can be quantized to.
    #[error("{0}")]
    Type(#[from] UnknownType),
    /// No value for a key.
    #[error("{found:?}: expected KEY=TYPE:VALUE, {expected}")]
    Override {
        /// The text.
        found: String,
        /// What is wrong with it.
        expected: &'static str,
    },
}

/// The name of no type that weights can be quantized to.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "element type {found:?}{}: expected one of {}",
    suggest(found, type_names().iter().map(String::as_str)),
    type_names().join(", ")
)]
pub struct UnknownType {
    /// The name.
    pub found: String,
}

fn type_names() -> Vec<String> {
    let types = DType::all().filter(|&dtype| quant_type(dtype).is_some());
    types.map(|dtype| dtype.to_string()).collect()
}

/// Reads the name of a type that weights can be quantized to, in any case.
///
/// # Errors
/// There is no such type, or it can only be carried.
pub fn parse_type(name: &str) -> Result<DType, UnknownType> {
    let dtype = DType::by_name(name).filter(|&dtype| quant_type(dtype).is_some());
    dtype.ok_or_else(|| UnknownType {
        found: name.to_owned(),
    })
}

impl FromStr for TypeRule {
    type Err = RuleError;

    /// Splits at the first `=`. The pattern is put in lower case, as the peer does: so `\S`
    /// turns into `\s`.
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

/// Where a pattern is wrong, counted in bytes from 0, and how.
fn regex_reason(error: &fancy_regex::Error) -> String {
    match error {
        fancy_regex::Error::ParseError(at, error) => format!("byte {at}: {error}"),
        other => other.to_string(),
    }
}

impl TypeRule {
    /// Whether the pattern matches anywhere in the name. The error says why that took too long.
    pub(crate) fn matches(&self, name: &str) -> Result<bool, String> {
        self.regex.is_match(name).map_err(|e| e.to_string())
    }

    /// The pattern.
    pub(crate) fn pattern(&self) -> &str {
        self.regex.as_str()
    }
}

/// A key gets this value; read from `KEY=TYPE:VALUE`, TYPE one of int, float, bool and str.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyOverride {
    /// The key.
    pub key: String,
    /// The value: for int the absolute value as u32, for float f32.
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
        let (kind, value) = typed.ok_or_else(|| error("a type in front of the value"))?;
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
