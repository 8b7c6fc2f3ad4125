//! Metadata values.

use std::fmt;

use bstr::BString;

use super::strings::Strings;

/// Type of a value, with its id in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// Returns the type with this id.
    pub fn from_id(id: u32) -> Option<ValueType> {
        Self::ALL.get(id as usize).copied()
    }

    /// Returns the name used in messages and listings.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value. Strings are bytes, because some files contain text that is not UTF-8.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(BString),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value; the format has no nested arrays.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Evaluates one expression for any element type of an array.
macro_rules! each_array {
    ($array:expr, $items:ident => $body:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::F32($items) => $body,
            Array::Bool($items) => $body,
            Array::String($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F64($items) => $body,
        }
    };
}

impl Value {
    /// Returns the type stored in the file.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Returns an integer of any width; `None` for other types and negative values.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Returns the text of a string in UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Returns the array, if the value is one.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

impl Array {
    /// Returns the type of the elements.
    pub fn item_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::F32(_) => ValueType::F32,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F64(_) => ValueType::F64,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        each_array!(self, items => items.len())
    }

    /// Checks whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns element `i` as a value.
    pub fn get(&self, i: usize) -> Option<Value> {
        Some(match self {
            Array::U8(items) => Value::U8(*items.get(i)?),
            Array::I8(items) => Value::I8(*items.get(i)?),
            Array::U16(items) => Value::U16(*items.get(i)?),
            Array::I16(items) => Value::I16(*items.get(i)?),
            Array::U32(items) => Value::U32(*items.get(i)?),
            Array::I32(items) => Value::I32(*items.get(i)?),
            Array::F32(items) => Value::F32(*items.get(i)?),
            Array::Bool(items) => Value::Bool(*items.get(i)?),
            Array::String(items) => Value::String(items.get(i)?.to_owned()),
            Array::U64(items) => Value::U64(*items.get(i)?),
            Array::I64(items) => Value::I64(*items.get(i)?),
            Array::F64(items) => Value::F64(*items.get(i)?),
        })
    }

    /// Shortens the array to `len` elements.
    pub fn truncate(&mut self, len: usize) {
        each_array!(self, items => items.truncate(len));
    }

    /// Appends a value of the array's element type; returns `false` without a change for another
    /// type.
    #[must_use]
    pub fn push(&mut self, value: Value) -> bool {
        match (self, value) {
            (Array::U8(items), Value::U8(v)) => items.push(v),
            (Array::I8(items), Value::I8(v)) => items.push(v),
            (Array::U16(items), Value::U16(v)) => items.push(v),
            (Array::I16(items), Value::I16(v)) => items.push(v),
            (Array::U32(items), Value::U32(v)) => items.push(v),
            (Array::I32(items), Value::I32(v)) => items.push(v),
            (Array::F32(items), Value::F32(v)) => items.push(v),
            (Array::Bool(items), Value::Bool(v)) => items.push(v),
            (Array::String(items), Value::String(v)) => items.push(v),
            (Array::U64(items), Value::U64(v)) => items.push(v),
            (Array::I64(items), Value::I64(v)) => items.push(v),
            (Array::F64(items), Value::F64(v)) => items.push(v),
            _ => return false,
        }
        true
    }
}

macro_rules! into_value {
    ($($variant:ident: $t:ty),*) => { $(
        impl From<$t> for Value {
            fn from(v: $t) -> Value { Value::$variant(v) }
        }
        impl From<Vec<$t>> for Value {
            fn from(v: Vec<$t>) -> Value { Value::Array(Array::$variant(v)) }
        }
    )* };
}
into_value!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, F32: f32, Bool: bool,
    U64: u64, I64: i64, F64: f64);

impl From<BString> for Value {
    fn from(text: BString) -> Value {
        Value::String(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text.into())
    }
}

impl From<Strings> for Value {
    fn from(texts: Strings) -> Value {
        Value::Array(Array::String(texts))
    }
}

impl From<Vec<String>> for Value {
    fn from(texts: Vec<String>) -> Value {
        Value::from(texts.iter().collect::<Strings>())
    }
}

/// Maximum number of array elements that a listing prints.
const SHOWN_ITEMS: usize = 8;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => write!(f, "{v}"),
            Value::I8(v) => write!(f, "{v}"),
            Value::U16(v) => write!(f, "{v}"),
            Value::I16(v) => write!(f, "{v}"),
            Value::U32(v) => write!(f, "{v}"),
            Value::I32(v) => write!(f, "{v}"),
            Value::F32(v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::String(v) => write!(f, "{v:?}"),
            Value::U64(v) => write!(f, "{v}"),
            Value::I64(v) => write!(f, "{v}"),
            Value::F64(v) => write!(f, "{v}"),
            Value::Array(array) => {
                write!(f, "[")?;
                for i in 0..array.len().min(SHOWN_ITEMS) {
                    let item = array.get(i).expect("i is below the length");
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                match array.len().saturating_sub(SHOWN_ITEMS) {
                    0 => write!(f, "]"),
                    more => write!(f, ", and {more} more]"),
                }
            }
        }
    }
}
