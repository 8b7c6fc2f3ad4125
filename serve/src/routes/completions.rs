//! `/v1/completions`: OpenAI's older API, with `echo` and the log-probabilities of prompts.

use axum::extract::State;
use axum::response::Response;
use runner::tokenizer::ControlText;
use serde_json::{Value, json};

use super::{App, Json, blocking};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::job::{Done, GeneratedToken};
use crate::params::{Generation, MAX_TOP};
use crate::prompt;
use crate::reply::{Choice, Format, Usage, reply, timings_json};
use crate::state::unix_time;
use crate::token_text::LegacyLogprobs;

pub(super) async fn completions(
    State(app): State<App>,
    Json(body): Json,
) -> Result<Response, ApiError> {
    let state = std::sync::Arc::clone(&app);
    let (prompts, generation, format) = blocking(move || {
        let fields = Fields::of(&body)?;
        let n_slots = app.model.n_slots;
        let mut generation = Generation::read(fields, app.sample, app.random_seed(), n_slots)?;
        let n_probs = fields.integer("logprobs", 0, MAX_TOP)?;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        generation.params.n_probs = n_probs.map(|n| n as usize);
        generation.params.prompt_probs = echo && n_probs.is_some();
        let value = fields.get("prompt");
        let value = value.ok_or_else(|| ApiError::invalid("field 'prompt' is missing"))?;
        let prompts = prompt::read(value, &app.files.tokenizer)?;
        let format = Legacy {
            id: app.reply_id(),
            created: unix_time(),
            echo,
            offsets: Vec::new(),
            as_ids: fields
                .boolean("return_tokens_as_token_ids")?
                .unwrap_or(false),
            return_tokens: generation.return_tokens,
            with_usage: !generation.include_usage,
            app,
        };
        Ok((prompts, generation, format))
    })
    .await?;
    reply(&state, prompts, &generation, format).await
}

/// The JSON of OpenAI's older API.
struct Legacy {
    app: App,
    id: String,
    created: u64,
    echo: bool,
    /// Offset of the next token in the text of each choice of a stream.
    offsets: Vec<usize>,
    as_ids: bool,
    return_tokens: bool,
    /// Put usage and timings into the chunk that ends a choice.
    with_usage: bool,
}

impl Legacy {
    fn object(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.app.model.id,
            "system_fingerprint": self.app.model.version,
            "choices": choices,
        })
    }

    fn prompt_text(&self, choice: &Choice) -> String {
        let tokenizer = &self.app.files.tokenizer;
        tokenizer.decode(&choice.prompt, ControlText::Show)
    }

    /// Returns the log-probabilities of an echoed prompt.
    fn prompt_logprobs(&self, choice: &Choice) -> LegacyLogprobs {
        let mut arrays = LegacyLogprobs::new(self.as_ids, 0);
        for (&id, logprob) in choice.prompt.iter().zip(&choice.prompt_logprobs) {
            arrays.push(&self.app.files.tokenizer, id, logprob.as_ref());
        }
        arrays
    }

    /// Returns the log-probabilities of a choice: of its prompt, if it is echoed, and its tokens.
    fn all_logprobs(&self, choice: &Choice) -> Value {
        let tokenizer = &self.app.files.tokenizer;
        let mut arrays = self.prompt_logprobs(choice);
        for logprob in &choice.logprobs {
            arrays.push(tokenizer, logprob.id, Some(logprob));
        }
        match choice.logprobs.is_empty() && choice.prompt_logprobs.is_empty() {
            true => Value::Null,
            false => arrays.json(),
        }
    }

    fn offset(&mut self, index: usize) -> &mut usize {
        if self.offsets.len() <= index {
            self.offsets.resize(index + 1, 0);
        }
        &mut self.offsets[index]
    }
}

impl Format for Legacy {
    fn whole(&self, choices: &[Choice], usage: Usage) -> Value {
        let choice = |(index, choice): (usize, &Choice)| {
            let done = choice.done.as_ref()?;
            let text = match self.echo {
                true => self.prompt_text(choice) + &choice.text,
                false => choice.text.clone(),
            };
            let mut value = json!({
                "text": text,
                "index": index,
                "logprobs": self.all_logprobs(choice),
                "finish_reason": done.finish.reason(),
            });
            if self.return_tokens {
                value["token_ids"] = json!(choice.tokens);
                value["prompt_token_ids"] = json!(&choice.prompt[..]);
            }
            if let Some(hash) = &done.logits_hash {
                value["logits_hash"] = hash.clone().into();
            }
            Some(value)
        };
        let choices = choices.iter().enumerate().filter_map(choice).collect();
        let mut reply = self.object(choices);
        reply["usage"] = usage.json();
        reply["timings"] = timings_json(&usage.timings);
        reply
    }

    fn begin(&mut self, index: usize, choice: &Choice) -> Option<Value> {
        if !self.echo {
            return None;
        }
        let arrays = self.prompt_logprobs(choice);
        let logprobs = match choice.prompt_logprobs.is_empty() {
            true => Value::Null,
            false => arrays.json(),
        };
        let text = self.prompt_text(choice);
        let value =
            json!({"text": text, "index": index, "logprobs": logprobs, "finish_reason": null});
        let chunk = self.object(vec![value]);
        *self.offset(index) = arrays.n_chars();
        Some(chunk)
    }

    fn token(&mut self, index: usize, _: &Choice, token: &GeneratedToken) -> Value {
        let mut logprobs = Value::Null;
        if let Some(logprob) = &token.logprob {
            let start = *self.offset(index);
            let mut arrays = LegacyLogprobs::new(self.as_ids, start);
            arrays.push(&self.app.files.tokenizer, token.id, Some(logprob));
            logprobs = arrays.json();
            *self.offset(index) = arrays.n_chars();
        }
        let mut choice = json!({
            "text": token.text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": null,
        });
        if self.return_tokens {
            choice["token_ids"] = json!([token.id]);
        }
        self.object(vec![choice])
    }

    fn end(&mut self, index: usize, choice: &Choice, done: &Done) -> Value {
        let mut value = json!({
            "text": done.text,
            "index": index,
            "logprobs": null,
            "finish_reason": done.finish.reason(),
        });
        if self.return_tokens {
            value["token_ids"] = json!([]);
            value["prompt_token_ids"] = json!(&choice.prompt[..]);
        }
        if let Some(hash) = &done.logits_hash {
            value["logits_hash"] = hash.clone().into();
        }
        let mut chunk = self.object(vec![value]);
        if self.with_usage {
            chunk["usage"] = Usage::of(std::slice::from_ref(choice), 1).json();
            chunk["timings"] = timings_json(&done.timings);
        }
        chunk
    }

    fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.object(Vec::new());
        chunk["usage"] = usage.json();
        chunk["timings"] = timings_json(&usage.timings);
        chunk
    }
}
