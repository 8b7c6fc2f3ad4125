//! Chat templates, from `tokenizer_config.json` or from separate files.

use std::fs;
use std::path::Path;

use schemas::gguf::Metadata;
use serde_json::Value;

use super::files::TokenizerFiles;
use crate::error::Error;
use crate::hf_config::{read_file, read_optional_object};

pub(crate) const KEY: &str = "tokenizer.chat_template";
const NAMES_KEY: &str = "tokenizer.chat_templates";
const DEFAULT: &str = "default";

/// Name and template; [`DEFAULT`] is used unless another one is requested.
type Named = (String, String);

/// Writes the chat templates, if there are any.
pub(super) fn write(files: &TokenizerFiles, out: &mut Metadata) -> Result<(), Error> {
    // llama.cpp's converter treats checkpoints without a tokenizer config as base models, and looks no
    // further.
    let Some(config) = &files.config else {
        return Ok(());
    };
    let templates = match config.get("chat_template") {
        Some(value) => in_config(value),
        None => in_files(&files.folder)?,
    };
    let mut names = Vec::new();
    let mut default = None;
    for (name, template) in templates {
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        if name == DEFAULT {
            default = Some(template);
        } else if !name.is_empty() {
            if !template.is_empty() {
                out.set(format!("{KEY}.{name}"), template);
            }
            names.push(name);
        }
    }
    names.sort();
    names.dedup();
    if !names.is_empty() {
        out.set(NAMES_KEY, names);
    }
    if let Some(template) = default.filter(|template| !template.is_empty()) {
        out.set(KEY, template);
    }
    Ok(())
}

fn in_config(value: &Value) -> Vec<Named> {
    let named = |entry: &Value| {
        let text = |field: &str| Some(entry.get(field)?.as_str()?.to_owned());
        Some((text("name")?, text("template")?))
    };
    match value {
        Value::String(template) => vec![(DEFAULT.to_owned(), template.clone())],
        Value::Array(entries) => entries.iter().filter_map(named).collect(),
        _ => Vec::new(),
    }
}

fn in_files(folder: &Path) -> Result<Vec<Named>, Error> {
    let path = folder.join("chat_template.jinja");
    if !fs::exists(&path).unwrap_or(true) {
        let json = read_optional_object(&folder.join("chat_template.json"))?;
        let value = json.as_ref().and_then(|json| json.get("chat_template"));
        return Ok(value.map(in_config).unwrap_or_default());
    }
    let mut templates = vec![(DEFAULT.to_owned(), read_text(&path)?)];
    let more = folder.join("additional_chat_templates");
    let mut paths: Vec<_> = match fs::read_dir(&more) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    paths.sort();
    for path in paths {
        if let (Some("jinja"), Some(name)) = (
            path.extension().and_then(|extension| extension.to_str()),
            path.file_stem().and_then(|stem| stem.to_str()),
        ) {
            templates.push((name.to_owned(), read_text(&path)?));
        }
    }
    Ok(templates)
}

/// Reads a text file and normalises its line ends.
fn read_text(path: &Path) -> Result<String, Error> {
    let bytes = read_file(path)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
}
