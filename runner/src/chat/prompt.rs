//! [`PromptRenderer`]: decides which prompts are rendered, and with which template of the model
//! file.

use std::cell::OnceCell;

use chrono::{DateTime, FixedOffset, Local, Utc};
use schemas::gguf::Metadata;
use serde_json::{Map, Value};

use super::{ChatError, ChatTemplate, Conversation, TEMPLATE_KEY, TOOLS_TEMPLATE_KEY};
use crate::tokenizer::{ControlText, Tokenizer};

/// The prompts that go through the chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatMode {
    /// Conversations; plain text is left unmodified.
    Messages,
    /// Conversations, and plain text as a user message.
    Always,
    /// Like [`ChatMode::Always`] if the model has a template, else like [`ChatMode::Messages`].
    WherePossible,
    /// No prompts; a conversation is an error.
    Never,
}

/// Configuration of prompt rendering.
#[derive(Clone, Debug)]
pub struct ChatConfig {
    /// The prompts to render.
    pub mode: ChatMode,
    /// Template variables; those of a conversation take precedence.
    pub kwargs: Map<String, Value>,
    /// A template to use instead of the file's.
    pub template: Option<String>,
    /// Current time for templates.
    pub now: DateTime<FixedOffset>,
    /// True if the tokenizer will add the special tokens that the file asks for.
    pub add_special: bool,
}

/// Returns the current time, or the time `epoch` seconds after 1970-01-01 UTC.
pub fn clock(epoch: Option<i64>) -> DateTime<FixedOffset> {
    let fixed = epoch.and_then(|seconds| DateTime::<Utc>::from_timestamp(seconds, 0));
    fixed.map_or_else(|| Local::now().fixed_offset(), |time| time.fixed_offset())
}

/// Renders prompts for one model.
pub struct PromptRenderer<'a> {
    metadata: &'a Metadata,
    tokenizer: &'a Tokenizer,
    config: ChatConfig,
    template: OnceCell<ChatTemplate>,
    tools_template: OnceCell<ChatTemplate>,
}

impl<'a> PromptRenderer<'a> {
    /// Creates a renderer for a model with this metadata. Templates are parsed on first use.
    pub fn new(
        metadata: &'a Metadata,
        tokenizer: &'a Tokenizer,
        config: ChatConfig,
    ) -> PromptRenderer<'a> {
        PromptRenderer {
            metadata,
            tokenizer,
            config,
            template: OnceCell::new(),
            tools_template: OnceCell::new(),
        }
    }

    /// Returns the text of a plain prompt, rendered as a user message if the mode requires it.
    ///
    /// # Errors
    /// Rendering is required and fails.
    pub fn plain(&self, text: &str) -> Result<String, ChatError> {
        let is_rendered = match self.config.mode {
            ChatMode::Always => true,
            ChatMode::WherePossible => self.source(TEMPLATE_KEY).is_some(),
            ChatMode::Messages | ChatMode::Never => false,
        };
        match is_rendered {
            true => self.conversation(&Conversation::of_user(text)),
            false => Ok(text.to_owned()),
        }
    }

    /// Renders a conversation, up to the start of the reply. Special tokens that the tokenizer adds
    /// are left out, so that they appear only once.
    ///
    /// # Errors
    /// There is no template, or it cannot render the messages.
    pub fn conversation(&self, conversation: &Conversation) -> Result<String, ChatError> {
        if self.config.mode == ChatMode::Never {
            return Err(ChatError::SwitchedOff);
        }
        let mut conversation = conversation.clone();
        for (name, value) in &self.config.kwargs {
            let own = conversation.kwargs.entry(name.clone());
            own.or_insert_with(|| value.clone());
        }
        let template = self.template(!conversation.tools.is_empty())?;
        let text = template.render(&conversation)?;
        let mut text = &text[..];
        if self.config.add_special {
            if self.tokenizer.adds_bos() && !template.bos().is_empty() {
                text = text.strip_prefix(template.bos()).unwrap_or(text);
            }
            if self.tokenizer.adds_eos() && !template.eos().is_empty() {
                text = text.strip_suffix(template.eos()).unwrap_or(text);
            }
        }
        Ok(text.to_owned())
    }

    /// Returns the source of a template.
    fn source(&self, key: &str) -> Option<&str> {
        match &self.config.template {
            Some(template) => Some(template),
            None => self.metadata.str(key).ok().flatten(),
        }
    }

    fn template(&self, with_tools: bool) -> Result<&ChatTemplate, ChatError> {
        let (source, cell) = match self.source(TOOLS_TEMPLATE_KEY).filter(|_| with_tools) {
            Some(source) => (source, &self.tools_template),
            None => {
                let source = self.source(TEMPLATE_KEY).ok_or(ChatError::NoTemplate)?;
                (source, &self.template)
            }
        };
        if let Some(template) = cell.get() {
            return Ok(template);
        }
        let name = |token: Option<u32>| {
            token.map_or(String::new(), |t| {
                self.tokenizer.decode(&[t], ControlText::Show)
            })
        };
        let (bos, eos) = (name(self.tokenizer.bos()), name(self.tokenizer.eos()));
        let template = ChatTemplate::new(source, &bos, &eos, self.config.now)?;
        Ok(cell.get_or_init(|| template))
    }
}
