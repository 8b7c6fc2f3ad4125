//! Prompts of completion requests: text, token ids, or a mixture of both.

use runner::tokenizer::{EncodeConfig, Tokenizer};
use serde_json::Value;

use crate::error::ApiError;

/// Maximum number of texts that a request asks for: prompts, and choices of all prompts.
pub(crate) const MAX_TEXTS: usize = 1024;

/// Reads the prompts of a request: a string, an array of token ids and strings (one prompt), or an array
/// of such prompts.
///
/// # Errors
/// The value is something else, or a token id is outside the vocabulary.
pub(crate) fn read(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, ApiError> {
    let Value::Array(items) = value else {
        return Ok(vec![one(value, tokenizer)?]);
    };
    // Strings alone are prompts of their own; together with token ids they are parts of one prompt.
    let is_one = !items.is_empty() && items.iter().any(Value::is_number);
    let has_arrays = items.iter().any(Value::is_array);
    if is_one && !has_arrays {
        return Ok(vec![one(value, tokenizer)?]);
    }
    if items.is_empty() || items.len() > MAX_TEXTS {
        let n = items.len();
        return Err(ApiError::invalid(format!(
            "field 'prompt': {n} prompts, expected 1 to {MAX_TEXTS}"
        )));
    }
    items.iter().map(|item| one(item, tokenizer)).collect()
}

/// Reads one prompt: a string, or an array of token ids and strings.
pub(crate) fn one(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    let text = |text: &str, add_special| {
        tokenizer.encode(
            text,
            EncodeConfig {
                add_special,
                parse_special: true,
            },
        )
    };
    match value {
        Value::String(prompt) => Ok(text(prompt, true)),
        Value::Array(parts) => {
            let mut tokens = Vec::with_capacity(parts.len());
            for (i, part) in parts.iter().enumerate() {
                match part {
                    Value::String(part) => tokens.extend(text(part, i == 0)),
                    part => tokens.push(token(part, tokenizer)?),
                }
            }
            Ok(tokens)
        }
        _ => Err(ApiError::invalid(
            "field 'prompt': expected a string, an array of token ids, or an array of prompts",
        )),
    }
}

/// Reads a token id.
pub(crate) fn token(value: &Value, tokenizer: &Tokenizer) -> Result<u32, ApiError> {
    let n_tokens = tokenizer.n_tokens();
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    let id = id.filter(|&id| (id as usize) < n_tokens);
    id.ok_or_else(|| {
        let last = n_tokens.saturating_sub(1);
        ApiError::invalid(format!(
            "token id {value}: expected an integer from 0 to {last}"
        ))
    })
}
