//! Tokens as text in logprob objects.

use runner::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::job::TokenLogprob;

/// Returns the text of a token; bytes that are not UTF-8 become U+FFFD.
pub(crate) fn text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
}

fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    json!({
        "id": id,
        "token": text(tokenizer, id),
        "bytes": tokenizer.token_bytes(id),
        "logprob": logprob,
    })
}

/// Returns a logprob object with `id`, `token`, `bytes`, `logprob` and `top_logprobs`, as in OpenAI's chat
/// API and llama-server's `/completion`.
pub(crate) fn content(tokenizer: &Tokenizer, token: &TokenLogprob) -> Value {
    let mut value = entry(tokenizer, token.id, token.logprob);
    let top = token.top.iter();
    value["top_logprobs"] = top
        .map(|&(id, logprob)| entry(tokenizer, id, logprob))
        .collect();
    value
}

/// The logprobs of OpenAI's older completion API: parallel arrays over tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct LegacyLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    /// Characters of the text so far.
    n_chars: usize,
    /// Write `token_id:N` in place of texts.
    as_ids: bool,
}

impl LegacyLogprobs {
    /// Starts the arrays at an offset in the text, in characters.
    pub(crate) fn new(as_ids: bool, n_chars: usize) -> LegacyLogprobs {
        LegacyLogprobs {
            as_ids,
            n_chars,
            ..LegacyLogprobs::default()
        }
    }

    fn name(&self, tokenizer: &Tokenizer, id: u32) -> String {
        match self.as_ids {
            true => format!("token_id:{id}"),
            false => text(tokenizer, id),
        }
    }

    /// Adds a token; `None` for a prompt's first token, which has no probability.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprob: Option<&TokenLogprob>) {
        let name = self.name(tokenizer, id);
        self.tokens.push(name.clone().into());
        self.text_offset.push(self.n_chars);
        self.n_chars += text(tokenizer, id).chars().count();
        let Some(logprob) = logprob else {
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
            return;
        };
        self.token_logprobs.push(json!(logprob.logprob));
        let mut top = Map::new();
        // Of tokens with the same text the most likely one is kept, and the chosen token always.
        for &(id, logprob) in &logprob.top {
            let name = self.name(tokenizer, id);
            top.entry(name).or_insert(json!(logprob));
        }
        top.entry(name).or_insert(json!(logprob.logprob));
        self.top_logprobs.push(top.into());
    }

    pub(crate) fn n_chars(&self) -> usize {
        self.n_chars
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
