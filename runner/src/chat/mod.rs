//! [`ChatTemplate`]: renders conversations to prompts with the Jinja template of a model file.
//!
//! Templates are written for Jinja2 as transformers configures it. This module contains the
//! environment ([`environment`]), the form of messages that a template expects ([`Shape`]), and the
//! limits of a rendering ([`FUEL`], [`MAX_SOURCE_BYTES`]): a template comes with a downloaded file,
//! so it is not trusted. The module does not know about tokens.

mod environment;
mod json;
mod methods;
mod prompt;
#[cfg(test)]
mod tests;

use chrono::{DateTime, FixedOffset};
use minijinja::value::Serde;
use minijinja::{Environment, Error as JinjaError, ErrorKind};
use serde_json::{Map, Value, json};

use environment::Raised;

pub use prompt::{ChatConfig, ChatMode, PromptRenderer, clock};

/// Metadata key of the default template; a named template adds its name as suffix.
pub const TEMPLATE_KEY: &str = "tokenizer.chat_template";
/// Metadata key of the template for requests with tools, if a file has a separate one.
pub const TOOLS_TEMPLATE_KEY: &str = "tokenizer.chat_template.tool_use";

/// Budget of one rendering: about one unit per instruction and per 64 bytes of output. A long
/// conversation takes a few hundred thousand.
const FUEL: u64 = 2_000_000;
/// Maximum length of a text produced by our own methods and filters: fuel is charged only
/// afterwards.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Maximum length of a template. Published ones have up to 30 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Stack size of the thread that parses and renders. A template can nest operators and lists
/// deeply, and each level takes a frame when it is parsed, printed or dropped. Untouched pages cost
/// nothing.
const STACK_BYTES: usize = 1 << 30;

/// A chat template cannot be used, or refuses a conversation.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The model file has no template.
    #[error(
        "the model has no chat template ({TEMPLATE_KEY}). Give one with --chat-template-file, or a plain prompt with --no-chat"
    )]
    NoTemplate,
    /// A conversation was given, but chat templates are disabled.
    #[error("messages need the chat template, which --no-chat disables")]
    SwitchedOff,
    /// The template is too long.
    #[error("chat template: {found} bytes, expected at most {MAX_SOURCE_BYTES}")]
    TooLong {
        /// Length in bytes.
        found: usize,
    },
    /// The template does not parse, or rendering fails.
    #[error("chat template: {0}")]
    Template(String),
    /// The template itself refuses the conversation.
    #[error("chat template refuses the conversation: {0}")]
    Refused(String),
    /// Rendering exceeded its budget.
    #[error("chat template: stopped after {FUEL} steps, expected a template that ends")]
    OutOfFuel,
    /// The messages are not a valid conversation.
    #[error("{0}")]
    Messages(String),
}

/// Input of a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages in OpenAI's format: objects with `role`, and `content` as text or as parts.
    pub messages: Vec<Value>,
    /// Tool definitions in OpenAI's format; empty for none.
    pub tools: Vec<Value>,
    /// Additional template variables, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
}

impl Conversation {
    /// Returns a conversation with a single user message.
    pub fn of_user(text: &str) -> Conversation {
        Conversation {
            messages: vec![json!({"role": "user", "content": text})],
            ..Conversation::default()
        }
    }

    /// Checks the form of the messages.
    ///
    /// # Errors
    /// There is no message, or one has no role or content of the wrong type.
    pub fn check(&self) -> Result<(), ChatError> {
        let wrong =
            |i: usize, what: &str| Err(ChatError::Messages(format!("messages[{i}]: {what}")));
        if self.messages.is_empty() {
            return Err(ChatError::Messages(
                "messages: empty, expected a message or more".to_owned(),
            ));
        }
        for (i, message) in self.messages.iter().enumerate() {
            let Some(fields) = message.as_object() else {
                return wrong(i, "expected an object with role and content");
            };
            if !fields.get("role").is_some_and(Value::is_string) {
                return wrong(i, "role is missing, expected a text such as \"user\"");
            }
            let is_text = |part: &Value| part["type"] == "text" && part["text"].is_string();
            match fields.get("content") {
                Some(Value::String(_)) => {}
                Some(Value::Array(parts)) if parts.iter().all(is_text) => {}
                Some(Value::Array(_)) => {
                    return wrong(i, "content: expected parts of type \"text\" only");
                }
                None | Some(Value::Null) if fields.contains_key("tool_calls") => {}
                _ => return wrong(i, "content: expected a text or an array of text parts"),
            }
        }
        Ok(())
    }
}

/// A parsed template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    shape: Shape,
}

/// The form of messages that a template expects, found by rendering samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Content must be text: parts are joined.
    joins_parts: bool,
    /// Content must be parts: texts become a single part.
    wants_parts: bool,
    /// Arguments of tool calls are read as objects: JSON texts are parsed.
    object_arguments: bool,
}

const TEMPLATE: &str = "chat_template";

impl ChatTemplate {
    /// Parses a template. `bos` and `eos` are the texts of the special tokens, empty if the model
    /// has none; `now` is the time that the template gets if it asks for the date.
    ///
    /// # Errors
    /// The template is too long or does not parse.
    pub fn new(
        source: &str,
        bos: &str,
        eos: &str,
        now: DateTime<FixedOffset>,
    ) -> Result<ChatTemplate, ChatError> {
        if source.len() > MAX_SOURCE_BYTES {
            let found = source.len();
            return Err(ChatError::TooLong { found });
        }
        let mut environment = environment::new(now);
        environment.set_fuel(Some(FUEL));
        let source = environment::without_generation_tags(source);
        on_large_stack(|| environment.add_template_owned(TEMPLATE, source))?;
        let mut template = ChatTemplate {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            shape: Shape {
                joins_parts: false,
                wants_parts: false,
                object_arguments: false,
            },
        };
        template.shape = template.find_shape();
        Ok(template)
    }

    /// Renders a conversation to the prompt for its reply.
    ///
    /// # Errors
    /// The messages are malformed, the template refuses them, fails, or does not end.
    pub fn render(&self, conversation: &Conversation) -> Result<String, ChatError> {
        conversation.check()?;
        let messages = conversation.messages.iter().cloned();
        let messages = messages.map(|message| self.shape.apply(message)).collect();
        self.render_shaped(messages, conversation)
    }

    fn render_shaped(
        &self,
        messages: Vec<Value>,
        conversation: &Conversation,
    ) -> Result<String, ChatError> {
        let mut variables = Map::new();
        let mut set = |name: &str, value: Value| variables.insert(name.to_owned(), value);
        // Variables that llama.cpp's server sets, under the names used by different model families.
        let kwargs = &conversation.kwargs;
        let preserve = kwargs
            .get("preserve_reasoning")
            .and_then(Value::as_bool)
            .unwrap_or(true);
        set("preserve_thinking", json!(preserve));
        for name in [
            "clear_thinking",
            "truncate_history_thinking",
            "drop_thinking",
        ] {
            set(name, json!(!preserve));
        }
        if let Some(effort) = kwargs.get("reasoning_effort") {
            set("reasoning_strength", effort.clone());
        }
        set("enable_thinking", json!(true));
        set("messages", Value::Array(messages));
        set("bos_token", json!(self.bos));
        set("eos_token", json!(self.eos));
        set("add_generation_prompt", json!(true));
        if !conversation.tools.is_empty() {
            set("tools", json!(conversation.tools));
        }
        for (name, value) in kwargs {
            set(name, value.clone());
        }
        on_large_stack(|| {
            let template = self.environment.get_template(TEMPLATE)?;
            template.render(Serde(&variables))
        })
    }

    fn find_shape(&self) -> Shape {
        const SAMPLE: &str = "a-sample-of-content";
        let render = |messages: Value| {
            let messages = messages.as_array().cloned().unwrap_or_default();
            self.render_shaped(messages, &Conversation::default())
        };
        let of_user = |content: Value| render(json!([{"role": "user", "content": content}]));
        let shows = |rendered: &Result<String, ChatError>| {
            rendered.as_ref().is_ok_and(|text| text.contains(SAMPLE))
        };
        let as_text = shows(&of_user(json!(SAMPLE)));
        // A template for text content would print the list itself, with its keys.
        let as_parts = of_user(json!([{"type": "text", "text": SAMPLE}]));
        let as_parts = shows(&as_parts) && as_parts.is_ok_and(|text| !text.contains("'text'"));
        let call = |arguments: Value| {
            let function = json!({"name": "f", "arguments": arguments});
            let calls = json!([{"id": "call00000", "type": "function", "function": function}]);
            render(json!([
                {"role": "user", "content": SAMPLE},
                {"role": "assistant", "content": "", "tool_calls": calls},
            ]))
        };
        let (object, text) = (json!({"a-key": "a-value"}), r#"{"a-key": "a-value"}"#);
        let takes_text = call(json!(text)).is_ok_and(|shown| shown.contains(text));
        let takes_object = || call(object).is_ok_and(|shown| shown.contains("a-value"));
        Shape {
            joins_parts: as_text && !as_parts,
            wants_parts: as_parts && !as_text,
            object_arguments: !takes_text && takes_object(),
        }
    }

    /// Returns the text of the BOS token, empty for none.
    pub fn bos(&self) -> &str {
        &self.bos
    }

    /// Returns the text of the EOS token, empty for none.
    pub fn eos(&self) -> &str {
        &self.eos
    }
}

impl Shape {
    /// Converts a message to the form that the template expects.
    fn apply(self, mut message: Value) -> Value {
        match &mut message["content"] {
            Value::Array(parts) if self.joins_parts => {
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                let text = texts.collect::<Vec<_>>().join("\n");
                message["content"] = json!(text);
            }
            Value::String(text) if self.wants_parts => {
                let parts = json!([{"type": "text", "text": text}]);
                message["content"] = parts;
            }
            // A message with tool calls may have no content; the access above has added it as null.
            _ => {}
        }
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls
            .into_iter()
            .flatten()
            .filter(|_| self.object_arguments)
        {
            let Some(arguments) = call.pointer_mut("/function/arguments") else {
                continue;
            };
            let parsed = arguments.as_str().map(serde_json::from_str);
            if let Some(Ok(object @ Value::Object(_))) = parsed {
                *arguments = object;
            }
        }
        message
    }
}

/// Runs template code on a separate thread with a large stack. Errors hold template values, so they
/// are converted to messages there too.
fn on_large_stack<T: Send>(
    work: impl FnOnce() -> Result<T, JinjaError> + Send,
) -> Result<T, ChatError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || work().map_err(|error| chat_error(&error)));
        let thread = thread.map_err(|error| ChatError::Template(error.to_string()))?;
        let panicked = || ChatError::Template("the renderer panicked".to_owned());
        thread.join().unwrap_or_else(|_| Err(panicked()))
    })
}

/// Converts a template error to a single line.
fn chat_error(error: &JinjaError) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(Raised(message)) = found.downcast_ref() {
            return ChatError::Refused(message.clone());
        }
        if found
            .downcast_ref::<JinjaError>()
            .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
        {
            return ChatError::OutOfFuel;
        }
        cause = found.source();
    }
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    ChatError::Template(match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    })
}
