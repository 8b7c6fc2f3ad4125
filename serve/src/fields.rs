//! [`Fields`]: typed access to the fields of a JSON request. `null` means absent; a field of another type
//! or outside its range is an error that names it.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// Takes the fields of a request body.
    ///
    /// # Errors
    /// The body is not an object.
    pub(crate) fn of(body: &'a Value) -> Result<Fields<'a>, ApiError> {
        let map = body.as_object();
        let map = map.ok_or_else(|| ApiError::invalid("request body: expected a JSON object"))?;
        Ok(Fields(map))
    }

    /// Returns a field; `None` if it is absent or null.
    pub(crate) fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let wrong = || {
            ApiError::invalid(format!(
                "field '{name}': {}, expected {expected}",
                short(value)
            ))
        };
        read(value).map(Some).ok_or_else(wrong)
    }

    pub(crate) fn boolean(self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn array(self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.typed(name, "an array", Value::as_array)
    }

    /// Returns an integer in a range.
    pub(crate) fn integer(self, name: &str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        let expected = format!("an integer from {min} to {max}");
        self.typed(name, &expected, |value| {
            let n = value.as_i64()?;
            (min..=max).contains(&n).then_some(n)
        })
    }

    /// Returns a finite number in a range.
    pub(crate) fn number(self, name: &str, min: f64, max: f64) -> Result<Option<f32>, ApiError> {
        let expected = format!("a number from {min} to {max}");
        self.typed(name, &expected, |value| {
            let x = value.as_f64()?;
            (min..=max).contains(&x).then_some(x as f32)
        })
    }

    /// Rejects a field unless it is absent or has one of the values that change nothing.
    pub(crate) fn neutral(
        self,
        name: &str,
        is_neutral: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !is_neutral(value) => Err(ApiError::invalid(format!(
                "field '{name}' is not supported by this server"
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns a value as JSON, shortened for a message.
fn short(value: &Value) -> String {
    const MAX: usize = 60;
    let text = match value {
        Value::Array(items) => return format!("found an array of {}", items.len()),
        Value::Object(_) => return "found an object".to_owned(),
        value => value.to_string(),
    };
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("found {}..", &text[..at]),
        None => format!("found {text}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_typed() {
        let body = json!({"a": 1, "b": null, "c": 1.5, "d": "x", "e": [1, 2]});
        let fields = Fields::of(&body).unwrap();
        assert_eq!(fields.integer("a", 0, 5).unwrap(), Some(1));
        assert_eq!(fields.integer("b", 0, 5).unwrap(), None);
        assert_eq!(fields.integer("z", 0, 5).unwrap(), None);
        assert_eq!(fields.number("c", 0.0, 2.0).unwrap(), Some(1.5));
        let message = |error: ApiError| error.body()["error"]["message"].to_string();
        let error = message(fields.integer("c", 0, 5).unwrap_err());
        assert!(
            error.contains("field 'c': found 1.5, expected an integer from 0 to 5"),
            "{error}"
        );
        let error = message(fields.boolean("e").unwrap_err());
        assert!(error.contains("found an array of 2"), "{error}");
        assert!(fields.integer("a", 2, 5).is_err());
        assert!(fields.text("a").is_err());
        assert!(fields.neutral("d", |value| value == "x").is_ok());
        assert!(fields.neutral("d", |value| value == "y").is_err());
    }
}
