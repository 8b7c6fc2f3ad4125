//! Reads the front matter of a model card: YAML between two `---` lines at the top of README.md.

use std::fs;
use std::path::Path;

use serde_yaml_ng::{Mapping, Value};

use crate::error::Error;
use crate::hf_config::read_file;
use crate::note::Note;

/// Reads the fields of a model card; no fields if there is no readable card.
pub(crate) fn read(folder: &Path, notes: &mut Vec<Note>) -> Result<Card, Error> {
    let path = folder.join("README.md");
    if !fs::exists(&path).unwrap_or(true) {
        return Ok(Card::default());
    }
    let mut ignored = |why: String| {
        notes.push(Note::Ignored {
            file: "README.md".to_owned(),
            why,
        });
        Ok(Card::default())
    };
    let Ok(text) = String::from_utf8(read_file(&path)?) else {
        return ignored("it is not UTF-8".to_owned());
    };
    let mut lines = text.lines();
    if lines.next() != Some("---") {
        return Ok(Card::default());
    }
    let front: Vec<_> = lines.take_while(|line| *line != "---").collect();
    // Published cards are sometimes indented with tabs, which YAML forbids.
    let front = front.join("\n").replace('\t', "  ");
    match serde_yaml_ng::from_str(&front) {
        Ok(Value::Mapping(fields)) => Ok(Card { fields }),
        Ok(Value::Null) => Ok(Card::default()),
        Ok(_) => ignored("its front matter is not a mapping".to_owned()),
        Err(error) => ignored(format!("its front matter is not YAML: {error}")),
    }
}

/// The fields of a model card.
#[derive(Debug, Default)]
pub(crate) struct Card {
    fields: Mapping,
}

impl Card {
    /// Returns the first of these fields that is present and not null.
    fn get(&self, names: &[&str]) -> Option<&Value> {
        names
            .iter()
            .find_map(|&name| self.fields.get(name).filter(|value| !value.is_null()))
    }

    /// Returns a field as text; scalars are formatted as in the card.
    pub(crate) fn text(&self, names: &[&str]) -> Option<String> {
        self.get(names).and_then(scalar)
    }

    /// Returns the items of a field; a single text counts as one item. `None` if the field is absent.
    pub(crate) fn items(&self, names: &[&str]) -> Option<Vec<&Value>> {
        let value = names.iter().find_map(|&name| self.fields.get(name))?;
        Some(match value {
            Value::Null => Vec::new(),
            Value::Sequence(items) => items.iter().collect(),
            one => vec![one],
        })
    }

    /// [`Card::items`] as texts.
    pub(crate) fn texts(&self, names: &[&str]) -> Option<Vec<String>> {
        let items = self.items(names)?;
        Some(items.into_iter().filter_map(scalar).collect())
    }
}

/// Formats a scalar as text.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}
