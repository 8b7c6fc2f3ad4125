//! [`PromptRenderer`]: which prompts are rendered, and with which template of the model file.

use std::cell::OnceCell;

use chrono::{DateTime, FixedOffset, Local, Utc};
use schemas::gguf::Metadata;
use serde_json::{Map, Value};

use super::{ChatError, ChatTemplate, Conversation, TEMPLATE_KEY, TOOLS_TEMPLATE_KEY};
use crate::tokenizer::{ControlText, Tokenizer};

/// Which prompts go through the chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatMode {
    /// Conversations; plain text stays as it is.
    Messages,
    /// Conversations, and plain text as a message of the user.
    Always,
    /// As [`ChatMode::Always`] where there is a template, else as [`ChatMode::Messages`].
    WherePossible,
    /// None; a conversation is an error.
    Never,
}

/// How prompts become texts.
#[derive(Clone, Debug)]
pub struct ChatConfig {
    /// Which are rendered.
    pub mode: ChatMode,
    /// Variables of the template; those of a conversation come before these.
    pub kwargs: Map<String, Value>,
    /// A template in place of the file's.
    pub template: Option<String>,
    /// The time that templates are told.
    pub now: DateTime<FixedOffset>,
    /// Whether the texts will get the special tokens that the file asks for.
    pub add_special: bool,
}

/// The time, or that many seconds after the beginning of 1970, in UTC.
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
    /// For a model with that metadata. A template is parsed when it is first needed.
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

    /// The text of a plain prompt: rendered as a message of the user, if the mode says so.
    ///
    /// # Errors
    /// It must be rendered and cannot.
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

    /// The text of a conversation, up to where the reply begins. Special tokens that are added to
    /// every text are left out, so that there is one of each.
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

    /// The source of a template.
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
