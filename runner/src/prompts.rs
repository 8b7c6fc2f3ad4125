//! Prompt files: JSON lines, one prompt per line.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemas::input;
use schemas::vocab::tokens_sha256;
use serde::Deserialize;

/// One line of a prompt file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Name of the prompt, once per file.
    pub id: String,
    /// The text to continue.
    pub prompt: String,
    /// What sort of text it is, to group results by.
    pub kind: Option<String>,
    /// How many tokens to generate at most; the caller has a default.
    pub n_predict: Option<NonZeroUsize>,
}

/// A prompt file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The file cannot be read, or is not UTF-8.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line is not a prompt.
    #[error("{}: line {line}, column {column}: {message}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// In bytes, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// Two lines have one id.
    #[error("{}: line {line}: id {id:?} is already on line {first}", .path.display())]
    DuplicateId {
        /// The file.
        path: PathBuf,
        /// The later line, from 1.
        line: usize,
        /// The id.
        id: String,
        /// The earlier line, from 1.
        first: usize,
    },
    /// No line has a prompt.
    #[error("{}: no prompts", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Identifies a set of prompts: SHA-256 over the id, the text and the number of tokens to write of each
/// prompt, each preceded by its length.
pub fn sha256(prompts: &[Prompt]) -> String {
    let parts = prompts.iter().flat_map(|prompt| {
        let n_predict = prompt.n_predict.map(|n| n.to_string());
        let n_predict = n_predict.unwrap_or_default();
        [prompt.id.clone(), prompt.prompt.clone(), n_predict]
    });
    tokens_sha256(parts)
}

/// Reads a prompt file; the prompts are in file order, and there is at least one. Blank lines
/// are skipped.
pub fn read(path: &Path) -> Result<Vec<Prompt>, PromptError> {
    let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST).map_err(|source| {
        PromptError::Read {
            path: path.to_owned(),
            source,
        }
    })?;
    parse(path, &text)
}

/// Reads the text of a prompt file; `path` names it in messages.
///
/// # Errors
/// A line is no prompt, an id repeats, or there is no prompt.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Prompt>, PromptError> {
    let mut prompts = Vec::new();
    let mut first_lines = HashMap::new();
    for (line, json) in (1..).zip(text.lines()) {
        if json.trim().is_empty() {
            continue;
        }
        let prompt: Prompt =
            serde_json::from_str(json).map_err(|error| line_error(path, line, &error))?;
        if let Some(first) = first_lines.insert(prompt.id.clone(), line) {
            return Err(PromptError::DuplicateId {
                path: path.to_owned(),
                line,
                id: prompt.id,
                first,
            });
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(PromptError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(prompts)
}

/// The parser sees one line at a time and calls it line 1: only its column means something here.
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
        // The kind only groups results.
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
                "p.jsonl: line 2, column 11: missing field `prompt`",
            ),
            (
                "{\"id\": \"a\", \"prompt\": \"x\", \"n\": 1}",
                "p.jsonl: line 1, column 30: unknown field `n`, expected one of `id`, `prompt`, \
                 `kind`, `n_predict`",
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
