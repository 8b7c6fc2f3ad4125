//! `/completion`: llama-server's own API.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::{App, Json, blocking};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::job::{Done, Finish, GeneratedToken};
use crate::params::{Generation, MAX_TOP};
use crate::reply::{Choice, Format, Usage, reply, timings_json};
use crate::{prompt, token_text};

pub(super) async fn completion(
    State(app): State<App>,
    Json(body): Json,
) -> Result<Response, ApiError> {
    let state = std::sync::Arc::clone(&app);
    let (prompts, generation, format) = blocking(move || {
        let fields = Fields::of(&body)?;
        let n_slots = app.model.n_slots;
        let mut generation = Generation::read(fields, app.sample, app.random_seed(), n_slots)?;
        let n_probs = fields.integer("n_probs", 0, MAX_TOP)?;
        let n_probs = n_probs.or(fields.integer("logprobs", 0, MAX_TOP)?);
        generation.params.n_probs = n_probs.filter(|&n| n > 0).map(|n| n as usize);
        fields.neutral("response_fields", |_| false)?;
        let value = fields.get("prompt");
        let value = value.ok_or_else(|| ApiError::invalid("field 'prompt' is missing"))?;
        let value = value.get("prompt_string").unwrap_or(value);
        let prompts = prompt::read(value, &app.files.tokenizer)?;
        let format = Native {
            is_list: prompts.len() * generation.n > 1,
            settings: generation.settings(&app.model.spec_types),
            return_tokens: generation.return_tokens,
            app,
        };
        Ok((prompts, generation, format))
    })
    .await?;
    reply(&state, prompts, &generation, format).await
}

/// llama-server's JSON.
struct Native {
    app: App,
    settings: Value,
    is_list: bool,
    return_tokens: bool,
}

impl Native {
    fn logprobs<'a>(
        &self,
        logprobs: impl IntoIterator<Item = &'a crate::job::TokenLogprob>,
    ) -> Value {
        let tokenizer = &self.app.files.tokenizer;
        let logprobs = logprobs.into_iter();
        logprobs
            .map(|token| token_text::content(tokenizer, token))
            .collect()
    }

    /// Returns the object that ends a choice, with `content` in the field of that name.
    fn last(&self, index: usize, choice: &Choice, done: &Done, content: &str) -> Value {
        let tokenizer = &self.app.files.tokenizer;
        let tokens: &[u32] = match self.return_tokens {
            true => &choice.tokens,
            false => &[],
        };
        let stopping_word = match &done.finish {
            Finish::Word(word) => word.as_str(),
            _ => "",
        };
        let mut reply = json!({
            "index": index,
            "content": content,
            "tokens": tokens,
            "id_slot": choice.slot,
            "stop": true,
            "model": self.app.model.id,
            "tokens_predicted": choice.tokens.len(),
            "tokens_evaluated": choice.prompt.len(),
            "generation_settings": self.settings,
            "prompt": tokenizer.decode(&choice.prompt, runner::tokenizer::ControlText::Show),
            "has_new_line": choice.text.contains('\n'),
            "truncated": done.finish == Finish::Context,
            "stop_type": done.finish.stop_type(),
            "stopping_word": stopping_word,
            "tokens_cached": choice.prompt.len() + choice.tokens.len().saturating_sub(1),
            "timings": timings_json(&done.timings),
        });
        if let Some(hash) = &done.logits_hash {
            reply["logits_hash"] = hash.clone().into();
        }
        reply
    }
}

impl Format for Native {
    fn whole(&self, choices: &[Choice], _: Usage) -> Value {
        let reply = |(index, choice): (usize, &Choice)| {
            let done = choice.done.as_ref()?;
            let mut reply = self.last(index, choice, done, &choice.text);
            if !choice.logprobs.is_empty() {
                reply["completion_probabilities"] = self.logprobs(&choice.logprobs);
            }
            Some(reply)
        };
        let mut replies: Vec<Value> = choices.iter().enumerate().filter_map(reply).collect();
        match self.is_list {
            true => replies.into(),
            false => replies.pop().unwrap_or_default(),
        }
    }

    fn begin(&mut self, _: usize, _: &Choice) -> Option<Value> {
        None
    }

    fn token(&mut self, index: usize, choice: &Choice, token: &GeneratedToken) -> Value {
        let mut reply = json!({
            "index": index,
            "content": token.text,
            "tokens": [token.id],
            "stop": false,
            "id_slot": choice.slot,
            "tokens_predicted": choice.tokens.len(),
            "tokens_evaluated": choice.prompt.len(),
        });
        if let Some(logprob) = &token.logprob {
            reply["completion_probabilities"] = self.logprobs([logprob]);
        }
        reply
    }

    fn end(&mut self, index: usize, choice: &Choice, done: &Done) -> Value {
        self.last(index, choice, done, &done.text)
    }

    fn usage(&self, usage: Usage) -> Value {
        json!({"usage": usage.json()})
    }

    fn has_end_marker(&self) -> bool {
        false
    }
}
