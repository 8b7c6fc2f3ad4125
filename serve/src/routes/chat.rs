//! `/v1/chat/completions`: OpenAI's chat API.

use axum::extract::State;
use axum::response::Response;
use runner::chat::{ChatConfig, ChatMode, Conversation, PromptRenderer, clock};
use runner::tokenizer::EncodeConfig;
use serde_json::{Map, Value, json};

use super::{App, Json, blocking};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::job::{Done, GeneratedToken, TokenLogprob};
use crate::params::{Generation, MAX_TOP};
use crate::reply::{Choice, Format, Usage, reply, timings_json};
use crate::state::unix_time;
use crate::token_text;

pub(super) async fn chat_completions(
    State(app): State<App>,
    Json(body): Json,
) -> Result<Response, ApiError> {
    let state = std::sync::Arc::clone(&app);
    let (prompts, generation, format) = blocking(move || {
        let fields = Fields::of(&body)?;
        let n_slots = app.model.n_slots;
        let mut generation = Generation::read(fields, app.sample, app.random_seed(), n_slots)?;
        let n_top = fields.integer("top_logprobs", 0, MAX_TOP)?;
        let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
        if n_top.is_some_and(|n| n > 0) && !logprobs {
            let message = "field 'top_logprobs' requires \"logprobs\": true";
            return Err(ApiError::invalid(message));
        }
        generation.params.n_probs = logprobs.then(|| n_top.unwrap_or(0) as usize);
        fields.neutral("tool_choice", |value| value == "none" || value == "auto")?;
        let prompt = tokens(&app, fields)?;
        let format = Chat {
            id: app.reply_id(),
            created: unix_time(),
            return_tokens: generation.return_tokens,
            with_usage: !generation.include_usage,
            app,
        };
        Ok((vec![prompt], generation, format))
    })
    .await?;
    reply(&state, prompts, &generation, format).await
}

/// Renders the messages of a request with the chat template. `add_special` leaves out the special tokens
/// that the tokenizer adds.
pub(super) fn render(app: &App, fields: Fields<'_>, add_special: bool) -> Result<String, ApiError> {
    let messages = fields.array("messages")?;
    let messages = messages.ok_or_else(|| ApiError::invalid("field 'messages' is missing"))?;
    let is_assistant = |message: &Value| message["role"] == "assistant";
    if messages.last().is_some_and(is_assistant) {
        return Err(ApiError::invalid(
            "the last message has the role assistant: continuing a message is not supported",
        ));
    }
    fields.neutral("add_generation_prompt", |value| value == true)?;
    fields.neutral("continue_final_message", |value| value == false)?;
    fields.neutral("reasoning_format", |value| value == "none")?;
    let mut kwargs = Map::new();
    if let Some(given) = fields.get("chat_template_kwargs") {
        let given = given
            .as_object()
            .ok_or_else(|| ApiError::invalid("field 'chat_template_kwargs': expected an object"))?;
        kwargs.extend(given.clone());
    }
    if kwargs
        .get("enable_thinking")
        .is_some_and(|value| !value.is_boolean())
    {
        let message = "field 'chat_template_kwargs': enable_thinking: expected true or false";
        return Err(ApiError::invalid(message));
    }
    match fields.text("reasoning_effort")? {
        Some("none") => _ = kwargs.insert("enable_thinking".to_owned(), false.into()),
        Some(effort) => _ = kwargs.insert("reasoning_effort".to_owned(), effort.into()),
        None => {}
    }
    let conversation = Conversation {
        messages: messages.clone(),
        tools: Vec::new(),
        kwargs,
    };
    let refused = |error: runner::chat::ChatError| ApiError::invalid(error.to_string());
    conversation.check().map_err(refused)?;
    let config = ChatConfig {
        mode: ChatMode::Messages,
        kwargs: app.chat_kwargs.clone(),
        template: app.chat_template.clone(),
        now: clock(None),
        add_special,
    };
    let files = &app.files;
    let renderer = PromptRenderer::new(&files.model.plan.metadata, &files.tokenizer, config);
    renderer.conversation(&conversation).map_err(refused)
}

/// Renders and tokenizes the messages of a request.
pub(super) fn tokens(app: &App, fields: Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let text = render(app, fields, true)?;
    let config = EncodeConfig {
        add_special: true,
        parse_special: true,
    };
    Ok(app.files.tokenizer.encode(&text, config))
}

/// The JSON of OpenAI's chat API.
struct Chat {
    app: App,
    id: String,
    created: u64,
    return_tokens: bool,
    /// Put usage and timings into the chunk that ends a choice.
    with_usage: bool,
}

impl Chat {
    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.app.model.id,
            "system_fingerprint": self.app.model.version,
            "choices": choices,
        })
    }

    fn chunk(&self, index: usize, delta: Value, finish: Value) -> Value {
        let choice = json!({"index": index, "delta": delta, "finish_reason": finish});
        self.object("chat.completion.chunk", vec![choice])
    }

    fn logprobs<'a>(&self, logprobs: impl IntoIterator<Item = &'a TokenLogprob>) -> Value {
        let tokenizer = &self.app.files.tokenizer;
        let logprobs = logprobs.into_iter();
        let content: Vec<Value> = logprobs
            .map(|token| token_text::content(tokenizer, token))
            .collect();
        json!({ "content": content })
    }
}

impl Format for Chat {
    fn whole(&self, choices: &[Choice], usage: Usage) -> Value {
        let choice = |(index, choice): (usize, &Choice)| {
            let done = choice.done.as_ref()?;
            let mut value = json!({
                "index": index,
                "message": {"role": "assistant", "content": choice.text},
                "finish_reason": done.finish.reason(),
            });
            if !choice.logprobs.is_empty() {
                value["logprobs"] = self.logprobs(&choice.logprobs);
            }
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
        let mut reply = self.object("chat.completion", choices);
        reply["usage"] = usage.json();
        reply["timings"] = timings_json(&usage.timings);
        reply
    }

    fn begin(&mut self, index: usize, _: &Choice) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": null});
        Some(self.chunk(index, delta, Value::Null))
    }

    fn token(&mut self, index: usize, _: &Choice, token: &GeneratedToken) -> Value {
        let mut chunk = self.chunk(index, json!({"content": token.text}), Value::Null);
        if let Some(logprob) = &token.logprob {
            chunk["choices"][0]["logprobs"] = self.logprobs([logprob]);
        }
        if self.return_tokens {
            chunk["choices"][0]["token_ids"] = json!([token.id]);
        }
        chunk
    }

    fn end(&mut self, index: usize, choice: &Choice, done: &Done) -> Value {
        let delta = match done.text.is_empty() {
            true => json!({}),
            false => json!({"content": done.text}),
        };
        let mut chunk = self.chunk(index, delta, done.finish.reason().into());
        if let Some(hash) = &done.logits_hash {
            chunk["choices"][0]["logits_hash"] = hash.clone().into();
        }
        if self.return_tokens {
            chunk["choices"][0]["prompt_token_ids"] = json!(&choice.prompt[..]);
        }
        if self.with_usage {
            chunk["timings"] = timings_json(&done.timings);
        }
        chunk
    }

    fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.object("chat.completion.chunk", Vec::new());
        chunk["usage"] = usage.json();
        chunk["timings"] = timings_json(&usage.timings);
        chunk
    }
}
