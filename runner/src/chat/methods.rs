//! Methods of Python's types that templates call, with those of `minijinja-contrib` as fallback.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::MAX_TEXT_BYTES;
use super::environment::shown;

/// Calls a method that minijinja itself does not have.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => of_text(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq | ValueKind::Iterable => of_list(value, method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let parts = |before: &str, separator: &str, after: &str| {
        Value::from(Tuple::from([before, separator, after].map(Value::from)))
    };
    Ok(Some(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            let found = if before.len() < text.len() {
                separator
            } else {
                ""
            };
            parts(before, found, after)
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            match text.rsplit_once(separator) {
                Some((before, after)) => parts(before, separator, after),
                None => parts("", "", text),
            }
        }
        "rsplit" => {
            let (separator, max): (Option<&str>, Option<i64>) = from_args(args)?;
            let n = max.and_then(|max| usize::try_from(max).ok());
            let n = n.map_or(usize::MAX, |max| max.saturating_add(1));
            rsplit(text, separator, n)
        }
        "splitlines" if args.is_empty() => {
            let text = text.replace("\r\n", "\n");
            let ends = [
                '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}',
                '\u{2029}',
            ];
            text.split_terminator(ends).map(Value::from).collect()
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            Value::from(join(text, items)?)
        }
        "replace" => {
            let (old, new, max): (&str, &str, Option<i64>) = from_args(args)?;
            Value::from(replace(text, old, new, max)?)
        }
        "format" => {
            // The field width could be any number.
            let mut numbers = text.split(|c: char| !c.is_ascii_digit());
            match numbers.any(|number| number.len() > 4) {
                true => return Err(invalid("str.format: a field is too wide")),
                false => return Ok(None),
            }
        }
        "casefold" => Value::from(text.to_lowercase()),
        "isdecimal" => Value::from(!text.is_empty() && text.chars().all(char::is_numeric)),
        "index" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = text.find(wanted).map(|at| text[..at].chars().count());
            Value::from(at.ok_or_else(|| invalid("substring not found"))?)
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            Value::from(format!("{text:0>width$}", width = width.min(1000)))
        }
        _ => return Ok(None),
    }))
}

/// Joins items with a separator.
fn join(separator: &str, items: &Value) -> Result<String, Error> {
    let mut joined = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        let item = shown(&item)?;
        let separator = if i > 0 { separator } else { "" };
        check_size(joined.len() + separator.len() + item.len())?;
        joined.push_str(separator);
        joined.push_str(&item);
    }
    Ok(joined)
}

/// Replaces up to `max` occurrences; all if it is absent or negative.
fn replace(text: &str, old: &str, new: &str, max: Option<i64>) -> Result<String, Error> {
    let max = max.and_then(|max| usize::try_from(max).ok());
    let n = text.matches(old).count().min(max.unwrap_or(usize::MAX));
    check_size(n.saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(text.replacen(old, new, n))
}

/// Splits words from the right, into at most `n` parts.
fn rsplit(text: &str, separator: Option<&str>, n: usize) -> Value {
    let mut words: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(n, separator).collect(),
        None => {
            let mut words = Vec::new();
            let mut rest = text.trim();
            while !rest.is_empty() {
                let start = match words.len() + 1 == n {
                    true => 0,
                    false => rest.rfind(char::is_whitespace).map_or(0, |at| {
                        at + rest[at..].chars().next().map_or(0, char::len_utf8)
                    }),
                };
                words.push(&rest[start..]);
                rest = rest[..start].trim_end();
            }
            words
        }
    };
    words.reverse();
    words.into_iter().map(Value::from).collect()
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match method {
        "copy" => Some(list.clone()),
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let at = list.try_iter()?.position(|item| item == *wanted);
            Some(Value::from(
                at.ok_or_else(|| invalid("value is not in list"))?,
            ))
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "sort" | "reverse" | "clear" => {
            let message = format!("list.{method} changes a list in place, which is not supported");
            return Err(invalid(&message));
        }
        _ => None,
    })
}

fn check_size(n_bytes: usize) -> Result<(), Error> {
    match n_bytes > MAX_TEXT_BYTES {
        true => Err(invalid("a text is too long")),
        false => Ok(()),
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}
