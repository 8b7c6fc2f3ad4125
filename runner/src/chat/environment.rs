//! The Jinja environment of chat templates: the settings of transformers, and its additional
//! functions.

use std::fmt::{self, Write};

use chrono::{DateTime, FixedOffset};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::{MAX_TEXT_BYTES, json, methods};

/// The message of a template that refused a conversation.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Creates an environment without templates.
pub(super) fn new(now: DateTime<FixedOffset>) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.expect("the usual delimiters differ"));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&shown(value)?)?));
    environment.add_filter("string", |value: &Value| shown(value));
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("from_json", json::from_json);
    environment.add_function("from_json", json::from_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| strftime(now, format));
    environment
}

/// Converts a value to text, up to a size limit. A list that holds the same list twice, which holds
/// another twice, and so on, would exceed any memory.
pub(super) fn shown(value: &Value) -> Result<String, Error> {
    struct Bounded(String);
    impl Write for Bounded {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            match self.0.len() + text.len() > MAX_TEXT_BYTES {
                true => Err(fmt::Error),
                false => self.0.write_str(text),
            }
        }
    }
    let mut text = Bounded(String::new());
    let written = write!(text, "{value}");
    written.map_err(|_| Error::new(ErrorKind::InvalidOperation, "a value is too long to show"))?;
    Ok(text.0)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

/// Formats the time as Python does.
fn strftime(now: DateTime<FixedOffset>, format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let written = write!(text, "{}", now.format(format));
    written.map_err(|_| {
        let message = format!("strftime_now: format {format:?} is not known");
        Error::new(ErrorKind::InvalidOperation, message)
    })?;
    Ok(text)
}

/// Replaces `{% generation %}` blocks, which mark training data, by blocks that are always
/// rendered.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = match tag.get(..2) {
            Some("{%") => "%}",
            Some("{{") => "}}",
            Some("{#") => "#}",
            _ => "{",
        };
        let Some(length) = tag.find(end).map(|at| at + end.len()) else {
            return out + tag;
        };
        let (tag, after) = tag.split_at(length);
        let name = tag.trim_matches(['{', '}', '%', '-', '+']).trim();
        match (end, name) {
            ("%}", "generation") => out.push_str(&tag.replacen(name, "if true", 1)),
            ("%}", "endgeneration") => out.push_str(&tag.replacen(name, "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}
