//! Prompt files: JSON lines, one prompt per line. A prompt is a text, a conversation, or a list of parts: texts and
//! embeddings.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use runner::batch::{Embedding, NO_TOKEN};
use runner::chat::{ChatError, Conversation, PromptRenderer};
use runner::rope_positions::Coordinates;
use runner::speculate::Request;
use runner::tokenizer::{EncodeConfig, Tokenizer};
use schemas::input;
use schemas::vocab::tokens_sha256;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::embeddings;

/// One prompt, as text for the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Name of the prompt, unique in its file.
    pub id: String,
    /// The text to continue; without embeddings.
    pub prompt: String,
    /// Texts and embeddings to continue; empty for a prompt of text alone.
    pub parts: Vec<Part>,
    /// Kind of text, to group results by.
    pub kind: Option<String>,
    /// Maximum number of tokens to generate; the caller has a default.
    pub n_predict: Option<NonZeroUsize>,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A text.
    Text(String),
    /// Embeddings, such as those of an image.
    Embeddings(Vec<Embedding>),
}

impl Prompt {
    /// Returns the request to continue the prompt, for `n_predict` tokens if it has no own number.
    pub(crate) fn request(&self, tokenizer: &Tokenizer, n_predict: usize) -> Request {
        let n_predict = self.n_predict.map_or(n_predict, NonZeroUsize::get);
        self.request_of(tokenizer, EncodeConfig::PROMPT, n_predict)
    }

    /// Returns the request to continue the prompt, for `n_predict` tokens.
    pub fn request_of(
        &self,
        tokenizer: &Tokenizer,
        config: EncodeConfig,
        n_predict: usize,
    ) -> Request {
        if self.parts.is_empty() {
            let tokens = tokenizer.encode(&self.prompt, config);
            return Request::new(&self.id, tokens, n_predict);
        }
        let later = EncodeConfig {
            add_special: false,
            ..config
        };
        let mut request = Request::new(&self.id, Vec::new(), n_predict);
        for (i, part) in self.parts.iter().enumerate() {
            let config = if i == 0 { config } else { later };
            match part {
                Part::Text(text) => request.tokens.extend(tokenizer.encode(text, config)),
                Part::Embeddings(rows) => {
                    // Special tokens at the start of a prompt come before its embeddings.
                    request.tokens.extend(tokenizer.encode("", config));
                    request.tokens.extend(rows.iter().map(|_| NO_TOKEN));
                    request.embeddings.extend_from_slice(rows);
                }
            }
        }
        request
    }

    /// Returns the texts that identify the prompt: for a list of parts, each part with its kind.
    fn identity(&self) -> Vec<String> {
        let n_predict = self.n_predict.map(|n| n.to_string());
        let mut texts = vec![
            self.id.clone(),
            self.prompt.clone(),
            n_predict.unwrap_or_default(),
        ];
        for part in &self.parts {
            match part {
                Part::Text(text) => texts.extend(["text".to_owned(), text.clone()]),
                Part::Embeddings(rows) => {
                    texts.push("embeddings".to_owned());
                    texts.extend(
                        rows.iter()
                            .map(|row| format!("{:?} {:?}", row.position, &row[..])),
                    );
                }
            }
        }
        texts
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
    /// The prompt's fields; its text is empty if it is in `content`.
    prompt: Prompt,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Text(String),
    Messages(Conversation),
    Parts,
}

/// A line as JSON; it has `prompt`, `messages` or `parts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    id: String,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    parts: Option<Vec<PartFields>>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    kind: Option<String>,
    n_predict: Option<NonZeroUsize>,
}

/// A part as JSON: a text, or the file of embeddings and their positions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartFields {
    text: Option<String>,
    embeddings: Option<PathBuf>,
    positions: Option<Vec<Coordinates>>,
}

/// Upper limit of a coordinate, below which every integer is exact as a number of the rotation.
const MAX_COORDINATE: u32 = 1 << 24;

impl PartFields {
    /// Reads the part; its file is relative to `folder`.
    fn read(self, folder: &Path) -> Result<Part, String> {
        let (file, positions) = match (self.text, self.embeddings, self.positions) {
            (Some(text), None, None) => return Ok(Part::Text(text)),
            (None, Some(file), positions) => (folder.join(file), positions),
            _ => {
                return Err(
                    "expected `text`, or `embeddings` with or without `positions`".to_owned(),
                );
            }
        };
        let rows = embeddings::read(&file)?;
        let Some(positions) = positions else {
            return Ok(Part::Embeddings(rows));
        };
        if positions.len() != rows.len() {
            return Err(format!(
                "{} positions, expected one for each of the {} rows of {}",
                positions.len(),
                rows.len(),
                file.display()
            ));
        }
        let coordinates = positions.iter().flatten();
        if let Some(found) = coordinates.into_iter().find(|&&n| n > MAX_COORDINATE) {
            return Err(format!(
                "positions: {found}, expected at most {MAX_COORDINATE}"
            ));
        }
        let rows = rows.into_iter().zip(positions);
        Ok(Part::Embeddings(
            rows.map(|(row, position)| row.at(position)).collect(),
        ))
    }
}

/// Reads the parts of a prompt.
fn read_parts(parts: Vec<PartFields>, folder: &Path) -> Result<Vec<Part>, String> {
    if parts.is_empty() {
        return Err("parts: empty, expected a part or more".to_owned());
    }
    let parts = parts.into_iter().enumerate().map(|(i, part)| {
        let part = part.read(folder);
        part.map_err(|message| format!("parts[{i}]: {message}"))
    });
    parts.collect()
}

impl Fields {
    /// Reads a line; `folder` is that of the prompt file.
    fn content(self, folder: &Path) -> Result<Line, String> {
        let for_messages = self.tools.is_some() || self.chat_template_kwargs.is_some();
        let mut parts = Vec::new();
        let content = match (self.prompt, self.messages, self.parts) {
            (Some(_), None, None) | (None, None, Some(_)) if for_messages => {
                return Err("tools and chat_template_kwargs need messages".to_owned());
            }
            (Some(text), None, None) => Content::Text(text),
            (None, None, Some(found)) => {
                parts = read_parts(found, folder)?;
                Content::Parts
            }
            (None, Some(messages), None) => {
                let conversation = Conversation {
                    messages,
                    tools: self.tools.unwrap_or_default(),
                    kwargs: self.chat_template_kwargs.unwrap_or_default(),
                };
                conversation.check().map_err(|error| error.to_string())?;
                Content::Messages(conversation)
            }
            (None, None, None) => {
                return Err("missing field `prompt`, `messages` or `parts`".to_owned());
            }
            _ => return Err("found two of `prompt`, `messages` and `parts`".to_owned()),
        };
        let texts = parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Embeddings(_) => None,
        });
        Ok(Line {
            number: 0,
            content,
            prompt: Prompt {
                id: self.id,
                prompt: texts.collect(),
                parts,
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
            Content::Parts => Ok(String::new()),
        })
    }

    fn prompts(
        self,
        text: &dyn Fn(&Content) -> Result<String, ChatError>,
    ) -> Result<Vec<Prompt>, PromptError> {
        let PromptLines { path, lines } = self;
        let prompts = lines.into_iter().map(|line| match text(&line.content) {
            Ok(_) if line.content == Content::Parts => Ok(line.prompt),
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
        // Texts among embeddings have no template.
        Content::Parts => Ok(String::new()),
    })
}

/// Checks that all prompts are text, as servers need them.
///
/// # Errors
/// A prompt has embeddings.
pub fn check_text(prompts: &[Prompt]) -> Result<(), PromptError> {
    match prompts.iter().find(|prompt| !prompt.parts.is_empty()) {
        Some(prompt) => Err(PromptError::Embeddings {
            id: prompt.id.clone(),
        }),
        None => Ok(()),
    }
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
    /// A prompt has embeddings where only text can be used.
    #[error("prompt {id}: has embeddings, which servers do not accept")]
    Embeddings {
        /// Name of the prompt.
        id: String,
    },
    /// No line has a prompt.
    #[error("{}: no prompts", .path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Returns the SHA-256 that identifies a set of prompts: over the id, the text, the number of tokens to
/// generate and the parts of each prompt, each preceded by its length.
pub fn sha256(prompts: &[Prompt]) -> String {
    tokens_sha256(prompts.iter().flat_map(Prompt::identity))
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

/// Reads the text of a prompt file; `path` names it in messages, and files of embeddings are relative to its
/// folder.
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
        let folder = path.parent().unwrap_or(Path::new(""));
        let line = fields
            .content(folder)
            .map_err(|message| PromptError::Line {
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
                "p.jsonl: line 2, column 11: missing field `prompt`, `messages` or `parts`",
            ),
            (
                "{\"id\": \"a\", \"prompt\": \"x\", \"n\": 1}",
                "p.jsonl: line 1, column 30: unknown field `n`, expected one of `id`, `prompt`, \
                 `messages`, `parts`, `tools`, `chat_template_kwargs`, `kind`, `n_predict`",
            ),
            (
                "{\"id\": \"a\", \"prompt\": \"x\", \"messages\": []}",
                "p.jsonl: line 1, column 42: found two of `prompt`, `messages` and `parts`",
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

    /// A folder with two rows of embeddings, and the prompt of parts around them.
    fn with_parts(positions: &str) -> (tempfile::TempDir, Result<Vec<Prompt>, PromptError>) {
        let dir = tempfile::tempdir().unwrap();
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }\n";
        let mut npy = b"\x93NUMPY\x01\x00".to_vec();
        npy.extend((header.len() as u16).to_le_bytes());
        npy.extend(header.bytes());
        npy.extend([1.5f32, 2.5].iter().flat_map(|x| x.to_le_bytes()));
        fs::write(dir.path().join("e.npy"), npy).unwrap();
        let line = format!(
            r#"{{"id": "a", "parts": [{{"text": "x"}}, {{"embeddings": "e.npy"{positions}}}, {{"text": "y"}}]}}"#
        );
        let prompts = parse(&dir.path().join("p.jsonl"), &line);
        (dir, prompts)
    }

    #[test]
    fn parts_are_texts_and_embeddings() {
        let (_dir, prompts) = with_parts("");
        let plain = prompts.unwrap();
        assert_eq!(plain[0].prompt, "xy");
        let row = |x: f32| -> Embedding { [x].into_iter().collect() };
        let rows = vec![row(1.5), row(2.5)];
        let text = |text: &str| Part::Text(text.to_owned());
        assert_eq!(
            plain[0].parts,
            [text("x"), Part::Embeddings(rows), text("y")]
        );
        let (_dir, prompts) = with_parts(r#", "positions": [[1, 1, 1], [1, 1, 2]]"#);
        let placed = prompts.unwrap();
        let Part::Embeddings(rows) = &placed[0].parts[1] else {
            panic!("{placed:?}");
        };
        assert_eq!(rows[1], row(2.5).at([1, 1, 2]));
        assert_ne!(sha256(&plain), sha256(&placed));
    }

    #[test]
    fn mistakes_in_parts_are_named() {
        let message = |positions: &str| {
            let (dir, prompts) = with_parts(positions);
            let message = prompts.unwrap_err().to_string();
            message.replace(&format!("{}/", dir.path().display()), "")
        };
        for (positions, expected) in [
            (
                r#", "positions": [[1, 1, 1]]"#,
                "parts[1]: 1 positions, expected one for each of the 2 rows of e.npy",
            ),
            (
                r#", "positions": [[1, 1, 1], [1, 99999999, 1]]"#,
                "parts[1]: positions: 99999999, expected at most 16777216",
            ),
            (
                r#", "text": "z""#,
                "parts[1]: expected `text`, or `embeddings` with or without `positions`",
            ),
        ] {
            let found = message(positions);
            assert!(found.starts_with("p.jsonl: line 1, column "), "{found}");
            assert!(found.ends_with(expected), "{found}");
        }
        let found = message(r#", "positions": [[1, 1]]"#);
        assert!(found.contains("length 2"), "{found}");
        let found = super::parse(
            Path::new("p.jsonl"),
            r#"{"id": "a", "parts": [{"embeddings": "no"}]}"#,
        );
        let found = found.unwrap_err().to_string();
        assert!(found.contains("parts[0]: no: "), "{found}");
        let found = super::parse(Path::new("p.jsonl"), r#"{"id": "a", "parts": []}"#);
        let found = found.unwrap_err().to_string();
        assert!(
            found.ends_with("parts: empty, expected a part or more"),
            "{found}"
        );
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
