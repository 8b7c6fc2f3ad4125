//! Prompt files: JSON lines, one prompt per line.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use runner::chat::{ChatError, Conversation, PromptRenderer};
use runner::speculate::Request;
use runner::tokenizer::{EncodeConfig, Tokenizer};
use schemas::input;
use schemas::vocab::tokens_sha256;
use serde::Deserialize;
use serde_json::{Map, Value};

/// One prompt, as text for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Name of the prompt, unique in its file.
    pub id: String,
    /// The text to continue.
    pub prompt: String,
    /// Kind of text, to group results by.
    pub kind: Option<String>,
    /// Maximum number of tokens to generate; the caller has a default.
    pub n_predict: Option<NonZeroUsize>,
}

impl Prompt {
    /// Returns the request to continue the prompt, for `n_predict` tokens if it has no own number.
    pub(crate) fn request(&self, tokenizer: &Tokenizer, n_predict: usize) -> Request {
        let tokens = tokenizer.encode(&self.prompt, EncodeConfig::PROMPT);
        let n_predict = self.n_predict.map_or(n_predict, NonZeroUsize::get);
        Request::new(&self.id, tokens, n_predict)
    }
}

/// A prompt file, with conversations not rendered yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLines {
    path: PathBuf,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq)]
struct Line {
    /// Line number, from 1.
    number: usize,
    content: Content,
    /// The prompt's fields; its text is empty.
    prompt: Prompt,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Text(String),
    Messages(Conversation),
}

/// A line as JSON; it has `prompt` or `messages`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    id: String,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    kind: Option<String>,
    n_predict: Option<NonZeroUsize>,
}

impl Fields {
    fn content(self) -> Result<Line, String> {
        let for_messages = self.tools.is_some() || self.chat_template_kwargs.is_some();
        let content = match (self.prompt, self.messages) {
            (Some(_), None) if for_messages => {
                return Err("tools and chat_template_kwargs need messages".to_owned());
            }
            (Some(text), None) => Content::Text(text),
            (None, Some(messages)) => {
                let conversation = Conversation {
                    messages,
                    tools: self.tools.unwrap_or_default(),
                    kwargs: self.chat_template_kwargs.unwrap_or_default(),
                };
                conversation.check().map_err(|error| error.to_string())?;
                Content::Messages(conversation)
            }
            (None, None) => return Err("missing field `prompt` or `messages`".to_owned()),
            (Some(_), Some(_)) => return Err("found both `prompt` and `messages`".to_owned()),
        };
        Ok(Line {
            number: 0,
            content,
            prompt: Prompt {
                id: self.id,
                prompt: String::new(),
                kind: self.kind,
                n_predict: self.n_predict,
            },
        })
    }
}

impl PromptLines {
    /// True if one of the prompts is a conversation.
    pub fn has_messages(&self) -> bool {
        let mut contents = self.lines.iter().map(|line| &line.content);
        contents.any(|content| matches!(content, Content::Messages(_)))
    }

    /// Returns the prompts of a file without conversations.
    ///
    /// # Errors
    /// One of the prompts is a conversation.
    pub fn plain(self) -> Result<Vec<Prompt>, PromptError> {
        self.prompts(&|content| match content {
            Content::Text(text) => Ok(text.clone()),
            Content::Messages(_) => Err(ChatError::SwitchedOff),
        })
    }

    fn prompts(
        self,
        text: &dyn Fn(&Content) -> Result<String, ChatError>,
    ) -> Result<Vec<Prompt>, PromptError> {
        let PromptLines { path, lines } = self;
        let prompts = lines.into_iter().map(|line| match text(&line.content) {
            Ok(prompt) => Ok(Prompt {
                prompt,
                ..line.prompt
            }),
            Err(source) => Err(PromptError::Chat {
                path: path.clone(),
                line: line.number,
                source,
            }),
        });
        prompts.collect()
    }
}

/// Renders the prompts of a file to the text for the model.
///
/// # Errors
/// A conversation cannot be rendered.
pub fn render(
    lines: PromptLines,
    renderer: &PromptRenderer<'_>,
) -> Result<Vec<Prompt>, PromptError> {
    lines.prompts(&|content| match content {
        Content::Text(text) => renderer.plain(text),
        Content::Messages(conversation) => renderer.conversation(conversation),
    })
}

/// A prompt file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The file cannot be read, or is not UTF-8.
    #[error("{}: {source}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is not a prompt.
    #[error("{}: line {line}, column {column}: {message}", .path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// Description of the error.
        message: String,
    },
    /// Two lines have one id.
    #[error("{}: line {line}: id {id:?} is already on line {first}", .path.display())]
    DuplicateId {
        /// Path of the file.
        path: PathBuf,
        /// Number of the later line, from 1.
        line: usize,
        /// The id.
        id: String,
        /// Number of the earlier line, from 1.
        first: usize,
    },
    /// A conversation cannot be rendered.
    #[error("{}: line {line}: {source}", .path.display())]
    Chat {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The rendering error.
        source: ChatError,
    },
    /// No line has a prompt.
    #[error("{}: no prompts", .path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Returns the SHA-256 that identifies a set of prompts: over the id, the text and the number of
/// tokens to generate of each prompt, each preceded by its length.
pub fn sha256(prompts: &[Prompt]) -> String {
    let parts = prompts.iter().flat_map(|prompt| {
        let n_predict = prompt.n_predict.map(|n| n.to_string());
        let n_predict = n_predict.unwrap_or_default();
        [prompt.id.clone(), prompt.prompt.clone(), n_predict]
    });
    tokens_sha256(parts)
}

/// Reads a prompt file without conversations. The prompts are in file order, and there is at least
/// one. Blank lines are skipped.
///
/// # Errors
/// See [`read_lines`]. A conversation is an error too.
pub fn read(path: &Path) -> Result<Vec<Prompt>, PromptError> {
    read_lines(path)?.plain()
}

/// Reads a prompt file.
///
/// # Errors
/// The file cannot be read, a line is not a prompt, an id repeats, or there is no prompt.
pub fn read_lines(path: &Path) -> Result<PromptLines, PromptError> {
    let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST).map_err(|source| {
        PromptError::Read {
            path: path.to_owned(),
            source,
        }
    })?;
    parse_lines(path, &text)
}

/// Reads the text of a prompt file without conversations; `path` names it in messages.
///
/// # Errors
/// See [`read`].
pub fn parse(path: &Path, text: &str) -> Result<Vec<Prompt>, PromptError> {
    parse_lines(path, text)?.plain()
}

/// Reads the text of a prompt file; `path` names it in messages.
///
/// # Errors
/// A line is not a prompt, an id repeats, or there is no prompt.
pub fn parse_lines(path: &Path, text: &str) -> Result<PromptLines, PromptError> {
    let mut lines = Vec::new();
    let mut first_lines = HashMap::new();
    for (number, json) in (1..).zip(text.lines()) {
        if json.trim().is_empty() {
            continue;
        }
        let fields: Fields =
            serde_json::from_str(json).map_err(|error| line_error(path, number, &error))?;
        let line = fields.content().map_err(|message| PromptError::Line {
            path: path.to_owned(),
            line: number,
            column: json.trim_end().len(),
            message,
        })?;
        if let Some(first) = first_lines.insert(line.prompt.id.clone(), number) {
            return Err(PromptError::DuplicateId {
                path: path.to_owned(),
                line: number,
                id: line.prompt.id,
                first,
            });
        }
        lines.push(Line { number, ..line });
    }
    if lines.is_empty() {
        return Err(PromptError::Empty {
            path: path.to_owned(),
        });
    }
    let path = path.to_owned();
    Ok(PromptLines { path, lines })
}

/// The parser sees one line at a time and reports it as line 1: only its column is correct.
fn line_error(path: &Path, line: usize, error: &serde_json::Error) -> PromptError {
    let mut message = error.to_string();
    if let Some(end) = message.rfind(" at line 1 column ") {
        message.truncate(end);
    }
    PromptError::Line {
        path: path.to_owned(),
        line,
        column: error.column(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn message(text: &str) -> String {
        parse(Path::new("p.jsonl"), text).unwrap_err().to_string()
    }

    #[test]
    fn the_models_prompts() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/prompts.jsonl");
        let prompts = read(&path).unwrap();
        assert_eq!(prompts.len(), 10);
        assert_eq!(prompts[1].id, "c2");
        assert_eq!(prompts[1].kind.as_deref(), Some("completion"));
        assert_eq!(prompts[1].n_predict, NonZeroUsize::new(128));
        assert!(prompts[1].prompt.starts_with("import os\nimport io\n"));
    }

    #[test]
    fn only_id_and_prompt_are_needed() {
        let text =
            "\n{\"id\": \"a\", \"prompt\": \"\"}\r\n  \n{\"prompt\": \"\\u00e9\", \"id\": \"b\"}";
        let prompts = parse(Path::new("p.jsonl"), text).unwrap();
        assert_eq!(prompts.len(), 2);
        assert_eq!((prompts[0].n_predict, &prompts[0].kind), (None, &None));
        assert_eq!(prompts[1].prompt, "é");
    }

    #[test]
    fn a_set_of_prompts_has_a_hash() {
        let hash = |text: &str| sha256(&parse(Path::new("p.jsonl"), text).unwrap());
        let one = "{\"id\": \"a\", \"prompt\": \"x\"}";
        assert_eq!(hash(one), hash("{\"prompt\": \"x\", \"id\": \"a\"}"));
        // The kind is not part of the hash: it only groups results.
        assert_eq!(
            hash(one),
            hash("{\"id\": \"a\", \"prompt\": \"x\", \"kind\": \"k\"}")
        );
        for other in [
            "{\"id\": \"a\", \"prompt\": \"y\"}",
            "{\"id\": \"ax\", \"prompt\": \"\"}",
            "{\"id\": \"a\", \"prompt\": \"x\", \"n_predict\": 3}",
        ] {
            assert_ne!(hash(one), hash(other), "{other}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, expected) in [
            (
                "{\"id\": \"a\", \"prompt\": \"x\"}\n{\"id\": \"b\"}",
                "p.jsonl: line 2, column 11: missing field `prompt` or `messages`",
            ),
            (
                "{\"id\": \"a\", \"prompt\": \"x\", \"n\": 1}",
                "p.jsonl: line 1, column 30: unknown field `n`, expected one of `id`, `prompt`, \
                 `messages`, `tools`, `chat_template_kwargs`, `kind`, `n_predict`",
            ),
            (
                "{\"id\": \"a\", \"prompt\": \"x\", \"messages\": []}",
                "p.jsonl: line 1, column 42: found both `prompt` and `messages`",
            ),
            (
                "{\"id\": \"a\", \"messages\": []}",
                "p.jsonl: line 1, column 27: messages: empty, expected a message or more",
            ),
            (
                "{\"id\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": 3}]}",
                "p.jsonl: line 1, column 57: messages[0]: content: expected a text or an array of text parts",
            ),
            (
                "\n{\"id\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
                "p.jsonl: line 2: messages need the chat template, which --no-chat disables",
            ),
            (
                "{\"id\": \"a\", \"prompt\": \"x\"}\n\n{\"id\": \"a\", \"prompt\": \"y\"}",
                "p.jsonl: line 3: id \"a\" is already on line 1",
            ),
            ("\n\n", "p.jsonl: no prompts"),
        ] {
            assert_eq!(message(text), expected);
        }
        assert!(message("{\"id\": \"a\", \"prompt\": \"x\", \"n_predict\": 0}").contains("line 1"));
        assert!(message("{\"id\": \"a\", \"prompt\": \"x\"} junk").contains("trailing characters"));
    }

    #[test]
    fn a_missing_or_binary_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.jsonl");
        for bytes in [None, Some(b"\xff\xfe")] {
            if let Some(bytes) = bytes {
                fs::write(&path, bytes).unwrap();
            }
            let error = read(&path).unwrap_err();
            assert!(matches!(error, PromptError::Read { .. }));
            assert!(error.to_string().contains("p.jsonl: "));
        }
    }
}
