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
use crate::reasoning::{ReasoningSplitter, ReplyParts, TAGS};
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
        let rendered = render(&app, fields, true)?;
        let prompt = encode(&app, &rendered.prompt);
        let mut splitter = ReasoningSplitter::new(is_reasoning_split(fields)? && rendered.has_tags);
        let format = Chat {
            id: app.reply_id(),
            created: unix_time(),
            begun: splitter.push(&rendered.begun),
            splitter,
            open: Vec::new(),
            return_tokens: generation.return_tokens,
            with_usage: !generation.include_usage,
            app,
        };
        Ok((vec![prompt], generation, format))
    })
    .await?;
    reply(&state, prompts, &generation, format).await
}

/// True if reasoning is separated from the content of a reply.
fn is_reasoning_split(fields: Fields<'_>) -> Result<bool, ApiError> {
    match fields.text("reasoning_format")? {
        None | Some("auto" | "deepseek") => Ok(true),
        Some("none") => Ok(false),
        Some(_) => Err(ApiError::invalid(
            "field 'reasoning_format': expected \"none\", \"auto\" or \"deepseek\"",
        )),
    }
}

/// A rendered prompt.
pub(super) struct Rendered {
    pub(super) prompt: String,
    /// The end of the prompt that is part of the reply: an opening tag of the reasoning, and the message
    /// that is continued.
    begun: String,
    /// The chat template has tags around reasoning.
    has_tags: bool,
}

/// Renders the messages of a request with the chat template. `add_special` leaves out the special tokens
/// that the tokenizer adds. If the last message is the assistant's, the reply continues it.
pub(super) fn render(
    app: &App,
    fields: Fields<'_>,
    add_special: bool,
) -> Result<Rendered, ApiError> {
    let messages = fields.array("messages")?;
    let messages = messages.ok_or_else(|| ApiError::invalid("field 'messages' is missing"))?;
    let given = Conversation {
        messages: messages.clone(),
        tools: Vec::new(),
        kwargs: kwargs(fields)?,
    };
    let refused = |error: runner::chat::ChatError| ApiError::invalid(error.to_string());
    given.check().map_err(refused)?;
    let (continued, messages) = split_continued(fields, messages)?;
    let config = ChatConfig {
        mode: ChatMode::Messages,
        kwargs: app.chat_kwargs.clone(),
        template: app.chat_template.clone(),
        now: clock(None),
        add_special,
    };
    let files = &app.files;
    let renderer = PromptRenderer::new(&files.model.plan.metadata, &files.tokenizer, config);
    let render = |has_generation_prompt: bool| {
        let mut conversation = Conversation {
            messages: messages.to_vec(),
            ..given.clone()
        };
        let name = "add_generation_prompt".to_owned();
        conversation
            .kwargs
            .insert(name, has_generation_prompt.into());
        renderer.conversation(&conversation).map_err(refused)
    };
    let [opening_tag, closing_tag] = TAGS;
    let template = super::info::chat_template(app).unwrap_or_default();
    let has_tags = template.contains(closing_tag);
    if continued.is_none() && fields.boolean("add_generation_prompt")? == Some(false) {
        return Ok(Rendered {
            prompt: render(false)?,
            begun: String::new(),
            has_tags,
        });
    }
    let mut prompt = render(true)?;
    // The generation prompt may open the reasoning, or close it at once.
    let before = render(false)?;
    let added = prompt.strip_prefix(&before).unwrap_or_default();
    let begun = added
        .find(opening_tag)
        .map_or("", |at| &added[at..])
        .to_owned();
    prompt.truncate(prompt.len() - begun.len());
    let is_open = !begun.is_empty() && !begun.contains(closing_tag);
    let begun = match continued {
        None => begun,
        Some(message) => message.begun(&begun, is_open),
    };
    Ok(Rendered {
        prompt: prompt + &begun,
        begun,
        has_tags,
    })
}

/// A message of the assistant that the reply continues.
struct Continued {
    reasoning: String,
    content: String,
}

impl Continued {
    /// Returns the beginning of the reply, where the template begins it with `opening`.
    fn begun(&self, opening: &str, is_open: bool) -> String {
        let [opening_tag, closing_tag] = TAGS;
        let Continued { reasoning, content } = self;
        match (reasoning.is_empty(), content.is_empty()) {
            (true, true) => opening.to_owned(),
            (true, false) if is_open => format!("{opening_tag}\n\n{closing_tag}\n\n{content}"),
            (true, false) => format!("{opening}{content}"),
            (false, true) => format!("{opening_tag}\n{reasoning}"),
            (false, false) => format!("{opening_tag}\n{reasoning}\n{closing_tag}\n\n{content}"),
        }
    }
}

/// Returns the message that the reply continues, if there is one, and those before it.
fn split_continued<'a>(
    fields: Fields<'_>,
    messages: &'a [Value],
) -> Result<(Option<Continued>, &'a [Value]), ApiError> {
    let is_assistant = |message: &Value| message["role"] == "assistant";
    let wanted = fields.boolean("continue_final_message")?;
    let generation_prompt = fields.boolean("add_generation_prompt")?;
    if wanted == Some(true) && generation_prompt == Some(true) {
        return Err(ApiError::invalid(
            "fields 'add_generation_prompt' and 'continue_final_message': only one can be true",
        ));
    }
    let Some((last, before)) = messages.split_last().filter(|(last, _)| is_assistant(last)) else {
        return match wanted {
            Some(true) => Err(ApiError::invalid(
                "field 'continue_final_message': the last message is not the assistant's",
            )),
            _ => Ok((None, messages)),
        };
    };
    if before.last().is_some_and(is_assistant) {
        let message = "field 'messages': the last two messages are the assistant's, expected one";
        return Err(ApiError::invalid(message));
    }
    if last.get("tool_calls").is_some() {
        let message = "field 'messages': a message with tool calls cannot be continued";
        return Err(ApiError::invalid(message));
    }
    let content = match &last["content"] {
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        content => content.as_str().unwrap_or_default().to_owned(),
    };
    let reasoning = last["reasoning_content"].as_str().unwrap_or_default();
    let continued = Continued {
        reasoning: reasoning.to_owned(),
        content,
    };
    Ok((Some(continued), before))
}

/// Reads the variables of the chat template.
fn kwargs(fields: Fields<'_>) -> Result<Map<String, Value>, ApiError> {
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
    Ok(kwargs)
}

/// Tokenizes a rendered prompt.
pub(super) fn encode(app: &App, prompt: &str) -> Vec<u32> {
    let config = EncodeConfig {
        add_special: true,
        parse_special: true,
    };
    app.files.tokenizer.encode(prompt, config)
}

/// The JSON of OpenAI's chat API.
struct Chat {
    app: App,
    id: String,
    created: u64,
    return_tokens: bool,
    /// Put usage and timings into the chunk that ends a choice.
    with_usage: bool,
    /// The parts of the reply that the prompt has, and the splitter after them.
    begun: ReplyParts,
    splitter: ReasoningSplitter,
    /// Choices of a stream: parts that are not sent yet, and the splitter.
    open: Vec<(ReplyParts, ReasoningSplitter)>,
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

    /// Returns the parts of a whole reply.
    fn parts(&self, text: &str) -> ReplyParts {
        let (mut parts, mut splitter) = (self.begun.clone(), self.splitter.clone());
        parts.extend(&splitter.push(text));
        parts.extend(&splitter.finish());
        parts
    }

    /// Adds text to a choice of a stream. Returns the parts to send.
    fn push(&mut self, index: usize, text: &str, is_last: bool) -> ReplyParts {
        if self.open.len() <= index {
            let new = (self.begun.clone(), self.splitter.clone());
            self.open.resize(index + 1, new);
        }
        let (begun, splitter) = &mut self.open[index];
        let mut parts = std::mem::take(begun);
        parts.extend(&splitter.push(text));
        if is_last {
            parts.extend(&splitter.clone().finish());
        }
        parts
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

/// Returns the parts that are not empty.
fn delta(parts: ReplyParts) -> Value {
    let mut delta = Map::new();
    for (name, text) in [
        ("reasoning_content", parts.reasoning),
        ("content", parts.content),
    ] {
        if !text.is_empty() {
            delta.insert(name.to_owned(), text.into());
        }
    }
    delta.into()
}

impl Format for Chat {
    fn whole(&self, choices: &[Choice], usage: Usage) -> Value {
        let choice = |(index, choice): (usize, &Choice)| {
            let done = choice.done.as_ref()?;
            let parts = self.parts(&choice.text);
            let mut value = json!({
                "index": index,
                "message": {"role": "assistant", "content": parts.content},
                "finish_reason": done.finish.reason(),
            });
            if !parts.reasoning.is_empty() {
                value["message"]["reasoning_content"] = parts.reasoning.into();
            }
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
        let parts = self.push(index, &token.text, false);
        let delta = match parts.reasoning.is_empty() {
            true => json!({"content": parts.content}),
            false => delta(parts),
        };
        let mut chunk = self.chunk(index, delta, Value::Null);
        if let Some(logprob) = &token.logprob {
            chunk["choices"][0]["logprobs"] = self.logprobs([logprob]);
        }
        if self.return_tokens {
            chunk["choices"][0]["token_ids"] = json!([token.id]);
        }
        chunk
    }

    fn end(&mut self, index: usize, choice: &Choice, done: &Done) -> Value {
        let delta = delta(self.push(index, &done.text, true));
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
