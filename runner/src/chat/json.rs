//! JSON in the format of Python's `json.dumps`: a space after `,` and `:`, keys in order of
//! insertion, and no HTML escapes.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::MAX_TEXT_BYTES;

/// Maximum nesting depth.
const MAX_DEPTH: usize = 200;
/// Maximum width of one level of indentation, in characters.
const MAX_INDENT: usize = 64;

struct Style {
    ascii: bool,
    sorted: bool,
    /// Indentation of one level; `None` for a single line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// The filter `tojson`, with the arguments of transformers: `ensure_ascii`, `indent`, `separators`,
/// `sort_keys`.
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut ascii = kwargs.get::<Option<bool>>("ensure_ascii")?;
    let mut indent = kwargs.get::<Option<Value>>("indent")?;
    // As positional argument, Jinja2 takes the indent and transformers the flag.
    for arg in args.iter() {
        match arg.kind() {
            ValueKind::Bool => ascii = Some(arg.is_true()),
            _ => indent = Some(arg.clone()),
        }
    }
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.chars().take(MAX_INDENT).collect(),
            (None, Some(n)) => " ".repeat(n.min(MAX_INDENT)),
            (None, None) => return Err(invalid("tojson: indent is not a number")),
        }),
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("tojson: separators are not a pair")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let style = Style {
        ascii: ascii.unwrap_or(false),
        sorted,
        indent,
        item_separator: item,
        key_separator: key,
    };
    let mut out = String::new();
    style.value(value, 0, &mut out)?;
    Ok(out)
}

/// The function and filter `from_json`.
pub(super) fn from_json(text: &str) -> Result<Value, Error> {
    let parsed: serde_json::Value =
        serde_json::from_str(text).map_err(|error| invalid(&format!("from_json: {error}")))?;
    Ok(Value::from(Serde(parsed)))
}

impl Style {
    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH || out.len() > MAX_TEXT_BYTES {
            return Err(invalid("tojson: the value is too large or nested too deep"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => {
                let _ = write!(out, "{value}");
            }
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(('[', ']'), items.len(), depth, out, |i, out| {
                    self.value(&items[i], depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.list(('{', '}'), keys.len(), depth, out, |i, out| {
                    match keys[i].as_str() {
                        Some(key) => self.text(key, out),
                        // Python converts other keys to text.
                        None => {
                            out.push('"');
                            self.value(&keys[i], depth + 1, out)?;
                            out.push('"');
                        }
                    }
                    out.push_str(&self.key_separator);
                    self.value(&value.get_item(&keys[i])?, depth + 1, out)
                })?;
            }
            kind => return Err(invalid(&format!("tojson: {kind} has no JSON"))),
        }
        Ok(())
    }

    /// Writes `n` items between brackets.
    fn list(
        &self,
        (open, close): (char, char),
        n: usize,
        depth: usize,
        out: &mut String,
        item: impl Fn(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| n > 0) {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for i in 0..n {
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            line(depth + 1, out);
            item(i, out)?;
        }
        line(depth, out);
        out.push(close);
        Ok(())
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                _ if char < ' ' || (self.ascii && char > '~') => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(char),
            }
        }
        out.push('"');
    }
}

/// Formats a number as Python does: with an exponent of at least two digits where that is shorter.
fn float(x: f64) -> String {
    let magnitude = x.abs();
    if x.is_nan() {
        "NaN".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        format!("{x:?}")
    } else {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        format!("{digits}e{sign}{exponent:0>2}")
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}
