//! Chat template flags.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Context;
use runner::chat::{ChatConfig, ChatMode, PromptRenderer, clock};
use runner::model_files::{DraftFiles, Files};
use schemas::input;
use serde_json::{Map, Value};
use verify::prompts::{self, Prompt, PromptLines};

use crate::output;

/// Conversion of prompts to model input.
#[derive(Debug, clap::Args)]
pub(super) struct ChatArgs {
    /// Apply the model's chat template to plain prompts
    ///
    /// Each prompt becomes one user message
    #[arg(long, overrides_with = "no_chat")]
    chat: bool,
    /// Continue plain prompts as raw text, without a chat template
    #[arg(long, overrides_with = "chat")]
    no_chat: bool,
    #[command(flatten)]
    template: TemplateArgs,
}

/// The chat template and its variables.
#[derive(Debug, clap::Args)]
pub(super) struct TemplateArgs {
    /// Variables for the chat template, as a JSON object
    ///
    /// Example: '{"enable_thinking": false}'
    #[arg(long, value_name = "JSON", env = "LLAMA_ARG_CHAT_TEMPLATE_KWARGS", hide_env_values = true, value_parser = kwargs)]
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
    /// Jinja file to use instead of the model's own chat template
    #[arg(
        long,
        value_name = "FILE.jinja",
        env = "LLAMA_ARG_CHAT_TEMPLATE_FILE",
        hide_env_values = true
    )]
    chat_template_file: Option<PathBuf>,
}

fn kwargs(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}

impl TemplateArgs {
    /// Reads the template to use instead of the model's own.
    pub(super) fn read(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.chat_template_file else {
            return Ok(None);
        };
        let text = input::read_text(path, input::Kind::Stream, input::MAX_HANDWRITTEN);
        Ok(Some(text.with_context(|| path.display().to_string())?))
    }
}

impl ChatArgs {
    /// True if every prompt becomes a message.
    pub(super) fn is_applied(&self) -> bool {
        self.chat
    }

    fn mode(&self, default: ChatMode) -> ChatMode {
        match (self.chat, self.no_chat) {
            (true, _) => ChatMode::Always,
            (_, true) => ChatMode::Never,
            _ => default,
        }
    }

    /// Returns whether no prompt is rendered: neither plain prompts nor any of `lines`.
    fn is_raw(&self, default: ChatMode, lines: Option<&PromptLines>) -> bool {
        matches!(self.mode(default), ChatMode::Messages | ChatMode::Never)
            && !lines.is_some_and(PromptLines::has_messages)
    }

    /// Warns about flags of the template if no prompt is rendered.
    pub(super) fn warn_of_unused(&self, default: ChatMode, lines: Option<&PromptLines>) {
        let template = &self.template;
        if self.is_raw(default, lines)
            && (template.chat_template_file.is_some() || template.chat_template_kwargs.is_some())
        {
            output::warning(
                &"--chat-template-file and --chat-template-kwargs change nothing: plain prompts are rendered only with --chat",
            );
        }
    }

    /// Returns the renderer of prompts for a model. `default` applies if neither --chat nor --no-chat is
    /// given.
    pub(super) fn renderer<'a>(
        &self,
        files: &'a Files,
        default: ChatMode,
        add_special: bool,
    ) -> anyhow::Result<PromptRenderer<'a>> {
        // Same variable as for reproducible builds.
        let epoch = match env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => Some(text.parse().with_context(|| {
                format!("SOURCE_DATE_EPOCH: {text:?}, expected seconds since 1970")
            })?),
            Err(_) => None,
        };
        let config = ChatConfig {
            mode: self.mode(default),
            kwargs: self
                .template
                .chat_template_kwargs
                .clone()
                .unwrap_or_default(),
            template: self.template.read()?,
            now: clock(epoch),
            add_special,
        };
        Ok(PromptRenderer::new(
            &files.model.plan.metadata,
            &files.tokenizer,
            config,
        ))
    }

    /// Reads the prompts of a file. The model is opened only if a prompt must be rendered.
    pub(super) fn prompts(
        &self,
        lines: PromptLines,
        model: &Path,
        default: ChatMode,
    ) -> anyhow::Result<Vec<Prompt>> {
        self.warn_of_unused(default, Some(&lines));
        if self.is_raw(default, Some(&lines)) {
            return Ok(lines.plain()?);
        }
        let files = Files::open(model, &DraftFiles::default())?;
        let renderer = self.renderer(&files, default, true)?;
        Ok(prompts::render(lines, &renderer)?)
    }
}
