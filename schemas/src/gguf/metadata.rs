//! Metadata key-values in file order, with typed getters whose errors name the key.

use indexmap::IndexMap;

use super::strings::Strings;
use super::value::{Array, Value};

/// Key-values of a file. Their order is preserved from reading to writing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: IndexMap<String, Value>,
}

/// Error for a key that is missing or has an unexpected value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// A required key is missing.
    #[error("key {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// The value has the wrong type, or is out of range.
    #[error("key {key}: expected {expected}, found {found}")]
    Type {
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// Type and value in the file.
        found: String,
    },
}

impl Metadata {
    /// Creates metadata without entries.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// Returns the value of a key for modification.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.entries.get_mut(key)
    }

    /// Checks whether the key is present.
    pub fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Sets a key: an existing one keeps its position, a new one is appended.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.entries.insert(key.into(), value.into());
    }

    /// Sets a key and moves it to the end, as `llama-quantize` does.
    pub fn set_last(&mut self, key: &str, value: impl Into<Value>) {
        self.entries.shift_remove(key);
        self.entries.insert(key.to_owned(), value.into());
    }

    /// Sets a key and moves it to the front.
    pub fn set_first(&mut self, key: &str, value: impl Into<Value>) {
        self.entries.shift_remove(key);
        self.entries.shift_insert(0, key.to_owned(), value.into());
    }

    /// Sets a key and moves it after `anchor`, or to the end if there is no such key.
    pub fn set_after(&mut self, anchor: &str, key: &str, value: impl Into<Value>) {
        self.entries.shift_remove(key);
        let at = self
            .entries
            .get_index_of(anchor)
            .map_or(self.entries.len(), |i| i + 1);
        self.entries.shift_insert(at, key.to_owned(), value.into());
    }

    /// Removes a key; the others keep their order.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.entries.shift_remove(key)
    }

    /// Returns the key directly before `key`.
    pub fn key_before(&self, key: &str) -> Option<&str> {
        let i = self.entries.get_index_of(key)?.checked_sub(1)?;
        self.entries.get_index(i).map(|(key, _)| key.as_str())
    }

    /// Returns the entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Checks whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reads a key through `read`; `Ok(None)` if it is absent.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| KeyError::Type {
            key: key.to_owned(),
            expected,
            found: format!("{} {value}", value.value_type()),
        })
    }

    /// Reads an unsigned integer below 2^32, stored as any integer type.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, KeyError> {
        self.typed(key, "an integer from 0 to 4294967295", |v| {
            v.as_u64()?.try_into().ok()
        })
    }

    /// Reads a floating-point number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.typed(key, "a floating-point number", |v| match *v {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// Reads a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.typed(key, "a boolean", |v| match *v {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// Reads UTF-8 text.
    pub fn str(&self, key: &str) -> Result<Option<&str>, KeyError> {
        self.typed(key, "UTF-8 text", Value::as_str)
    }

    /// Reads an array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, KeyError> {
        self.typed(key, "an array of strings", |v| match v.as_array()? {
            Array::String(items) => Some(items),
            _ => None,
        })
    }

    /// Reads an array of booleans.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, KeyError> {
        self.typed(key, "an array of booleans", |v| match v.as_array()? {
            Array::Bool(items) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// Reads an array of unsigned integers below 2^32, stored as any integer type.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, KeyError> {
        self.typed(key, "an array of integers from 0 to 4294967295", |v| {
            let array = v.as_array()?;
            (0..array.len())
                .map(|i| array.get(i)?.as_u64()?.try_into().ok())
                .collect()
        })
    }

    /// Reads an array of `f32`.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, KeyError> {
        self.typed(key, "an array of f32", |v| match v.as_array()? {
            Array::F32(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// [`Metadata::u32`] for a required key.
    pub fn need_u32(&self, key: &str) -> Result<u32, KeyError> {
        self.u32(key)?.ok_or_else(|| KeyError::Missing {
            key: key.to_owned(),
        })
    }

    /// [`Metadata::f32`] for a required key.
    pub fn need_f32(&self, key: &str) -> Result<f32, KeyError> {
        self.f32(key)?.ok_or_else(|| KeyError::Missing {
            key: key.to_owned(),
        })
    }

    /// [`Metadata::str`] for a required key.
    pub fn need_str(&self, key: &str) -> Result<&str, KeyError> {
        self.str(key)?.ok_or_else(|| KeyError::Missing {
            key: key.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(metadata: &Metadata) -> Vec<&str> {
        metadata.iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn order_is_kept_unless_asked() {
        let mut m = Metadata::new();
        for key in ["a", "b", "c"] {
            m.set(key, 1u32);
        }
        m.set("a", 2u32);
        assert_eq!(keys(&m), ["a", "b", "c"]);
        m.set_last("a", 3u32);
        assert_eq!(keys(&m), ["b", "c", "a"]);
        m.set_after("b", "x", 4u32);
        assert_eq!(keys(&m), ["b", "x", "c", "a"]);
        assert_eq!(m.key_before("x"), Some("b"));
        m.remove("b");
        assert_eq!(keys(&m), ["x", "c", "a"]);
        m.set_first("c", 5u32);
        assert_eq!(keys(&m), ["c", "x", "a"]);
        assert_eq!(m.key_before("c"), None);
    }

    #[test]
    fn a_wrong_type_is_named() {
        let mut m = Metadata::new();
        m.set("n", -1i32);
        let error = m.u32("n").unwrap_err().to_string();
        assert_eq!(
            error,
            "key n: expected an integer from 0 to 4294967295, found i32 -1"
        );
        assert_eq!(m.need_u32("k").unwrap_err().to_string(), "key k is missing");
        assert_eq!(m.u32("k"), Ok(None));
    }
}
