//! Parses a file to a [`Plan`] in small steps. After the last one, [`validate`], no tensor exceeds
//! the file.
//!
//! Limits are those of llama.cpp (gguf.cpp). To bound memory for hostile files, every count is also
//! checked against the remaining bytes before memory is reserved for it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bstr::BString;

use super::dtype::DType;
use super::map::Map;
use super::metadata::Metadata;
use super::plan::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_NAME_LEN, Plan, SizeError, Tensor};
use super::split;
use super::strings::Strings;
use super::value::{Array, Value, ValueType};
use super::write;

/// First bytes of every GGUF file.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// Error of reading a file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// The fault.
    pub kind: ReadErrorKind,
}

/// Fault of a file.
#[derive(Debug, thiserror::Error)]
pub enum ReadErrorKind {
    /// A file operation failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The bytes are not valid GGUF.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// A shard of a split model is missing or belongs to another model.
    #[error("{0}")]
    Split(#[from] split::SplitError),
    /// Another process wrote to the file after it was opened.
    #[error(
        "the file changed while it was being read: found {}. Run again when nothing writes to it",
        describe_change(*.found, *.expected)
    )]
    Changed {
        /// Size in bytes now.
        found: u64,
        /// Size in bytes when it was opened.
        expected: u64,
    },
}

fn describe_change(found: u64, expected: u64) -> String {
    match found == expected {
        true => "another modification time".to_owned(),
        false => format!("{found} bytes, expected {expected}"),
    }
}

/// Error of bytes that are not valid GGUF. Offsets count from the start of the file.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// The magic is missing.
    #[error("byte 0: expected the magic \"GGUF\", found {:?}", bstr::BStr::new(.found))]
    Magic {
        /// The first bytes, up to four.
        found: Vec<u8>,
    },
    /// The file is big-endian.
    #[error(
        "byte 4: big-endian file (version bytes {found:#010x}); only little-endian files are supported"
    )]
    BigEndian {
        /// Version as read.
        found: u32,
    },
    /// The version is not supported.
    #[error("byte 4: version {found}, expected 2 or 3")]
    Version {
        /// Version as read.
        found: u32,
    },
    /// The file ends early.
    #[error("byte {offset}: {what} needs {need} bytes, the file has {have} left")]
    Truncated {
        /// The item being read.
        what: String,
        /// Offset of the item.
        offset: u64,
        /// Bytes it needs.
        need: u64,
        /// Bytes left in the file.
        have: u64,
    },
    /// A name or key is not UTF-8.
    #[error("byte {offset}: {what} is not UTF-8")]
    NotUtf8 {
        /// The item being read.
        what: &'static str,
        /// Offset of the item.
        offset: u64,
    },
    /// A key is empty.
    #[error("byte {offset}: empty key")]
    EmptyKey {
        /// Offset of the key.
        offset: u64,
    },
    /// A key appears twice.
    #[error("byte {offset}: key {key} appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Offset of the second occurrence.
        offset: u64,
    },
    /// A value type is unknown, or an array of arrays.
    #[error("byte {offset}: key {key}: value type {found} is not supported{}", if *.nested { " inside an array" } else { "" })]
    ValueType {
        /// The key.
        key: String,
        /// Type id.
        found: u32,
        /// Offset of the type.
        offset: u64,
        /// True if it is the element type of an array.
        nested: bool,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("byte {offset}: key {key}: boolean byte {found}, expected 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
        /// Offset of the byte.
        offset: u64,
    },
    /// The value of the alignment key is invalid.
    #[error("key general.alignment: expected a power of two as u32, found {found}")]
    Alignment {
        /// Type and value in the file.
        found: String,
    },
    /// The name of a tensor is empty or too long.
    #[error("byte {offset}: tensor {tensor:?}: name of {} bytes, expected 1 to {max}", .tensor.len())]
    NameLength {
        /// The name.
        tensor: String,
        /// Offset of the name.
        offset: u64,
        /// Maximum length.
        max: usize,
    },
    /// Two tensors share a name.
    #[error("byte {offset}: tensor {tensor} appears twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
        /// Offset of the second occurrence.
        offset: u64,
    },
    /// A tensor has no dimensions, or too many.
    #[error("byte {offset}: tensor {tensor}: {found} dimensions, expected 1 to 4")]
    Axes {
        /// The name.
        tensor: String,
        /// Number of dimensions.
        found: u32,
        /// Offset of the tensor's entry.
        offset: u64,
    },
    /// The size of a tensor cannot be computed.
    #[error("tensor {tensor}: {source}")]
    Size {
        /// The name.
        tensor: String,
        /// The cause.
        source: SizeError,
    },
    /// The offset of a tensor's data does not match the sizes of the tensors before it.
    #[error(
        "tensor {tensor} ({dtype}): data at offset {found}, expected {expected} from the sizes of the tensors before it; a fork may use another block size for the type of the tensor before"
    )]
    Offset {
        /// The name.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Offset from the start of the data.
        found: u64,
        /// Sum of the padded sizes of the tensors before it.
        expected: u64,
    },
    /// A tensor's data exceeds the file.
    #[error("tensor {tensor} ({dtype}): data ends at byte {end}, the file has {len}")]
    DataEnd {
        /// The name.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// End of its data, from the start of the file.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
}

/// Opens a GGUF file, or all shards of a split model given the first one.
///
/// Tensor sources are views of the mapped files. The keys that describe the split are removed: the
/// plan is that of the whole model.
///
/// # Errors
/// The file cannot be read or is invalid; the error names the file, the tensor or key, and the
/// offset.
pub fn open(path: &Path) -> Result<Plan, ReadError> {
    let first = open_one(path)?;
    split::join(path, first)
}

/// Opens one file unmodified, even if it is a shard of a split model.
///
/// # Errors
/// The file cannot be read or is invalid.
pub fn open_one(path: &Path) -> Result<Plan, ReadError> {
    let error = |kind| ReadError {
        path: path.to_path_buf(),
        kind,
    };
    write::recover(path).map_err(|e| error(e.into()))?;
    let map = Map::open(path).map_err(|e| error(e.into()))?;
    let header = parse(map.bytes()).map_err(|e| error(e.into()))?;
    let ranges = validate(&header, map.bytes().len() as u64).map_err(|e| error(e.into()))?;
    // The header was copied, so its pages are no longer needed.
    map.release_pages(0..header.len as usize);
    let tensors = header
        .tensors
        .into_iter()
        .zip(ranges)
        .map(|(info, range)| {
            let row_bytes = info
                .shape
                .first()
                .and_then(|&ne0| info.dtype.row_bytes(ne0))
                .unwrap_or(1)
                .max(1);
            let size_bytes = range.end - range.start;
            let part = map
                .part(range.start as usize..range.end as usize, row_bytes)
                .expect("validate keeps every range inside the file");
            Tensor {
                name: info.name,
                shape: info.shape,
                dtype: info.dtype,
                size_bytes,
                source: Arc::new(part),
            }
        })
        .collect();
    Ok(Plan {
        version: header.version,
        metadata: header.metadata,
        tensors,
    })
}

/// Checks whether bytes are a valid file, as [`open_one`] does.
///
/// # Errors
/// The first fault, with its offset.
pub fn check(bytes: &[u8]) -> Result<(), Malformed> {
    let header = parse(bytes)?;
    validate(&header, bytes.len() as u64).map(drop)
}

/// Everything before the tensor data.
#[derive(Debug)]
struct Header {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Size up to the end of the tensor list, in bytes.
    len: u64,
}

#[derive(Debug)]
struct TensorInfo {
    name: String,
    shape: Vec<u64>,
    dtype: DType,
    /// Offset from the start of the data.
    offset: u64,
}

fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
    let mut cursor = Cursor { bytes, at: 0 };
    if !bytes.starts_with(&MAGIC) {
        return Err(Malformed::Magic {
            found: bytes[..bytes.len().min(4)].to_vec(),
        });
    }
    cursor.at = MAGIC.len();
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => {}
        found if found & 0xffff == 0 => return Err(Malformed::BigEndian { found }),
        found => return Err(Malformed::Version { found }),
    }
    let n_tensors = cursor.u64("tensor count")?;
    let n_entries = cursor.u64("key count")?;
    // The smallest entry has a one-byte key and a one-byte value.
    cursor.check_count("the key list", n_entries, 8 + 1 + 4 + 1)?;
    let mut metadata = Metadata::new();
    for _ in 0..n_entries {
        let offset = cursor.offset();
        let key = cursor.text("key")?;
        if key.is_empty() {
            return Err(Malformed::EmptyKey { offset });
        }
        if metadata.contains(&key) {
            return Err(Malformed::DuplicateKey { key, offset });
        }
        let value = cursor.value(&key)?;
        metadata.set(key, value);
    }
    // The smallest entry has a one-byte name and one dimension.
    cursor.check_count("the tensor list", n_tensors, 8 + 1 + 4 + 8 + 4 + 8)?;
    let mut tensors = Vec::with_capacity(n_tensors as usize);
    let mut names = HashSet::with_capacity(n_tensors as usize);
    for _ in 0..n_tensors {
        let offset = cursor.offset();
        let info = cursor.tensor_info()?;
        if !names.insert(info.name.clone()) {
            return Err(Malformed::DuplicateTensor {
                tensor: info.name,
                offset,
            });
        }
        tensors.push(info);
    }
    Ok(Header {
        version,
        metadata,
        tensors,
        len: cursor.offset(),
    })
}

/// Checks that every tensor is inside the file and directly follows the one before it; returns
/// their byte ranges. A tensor of an unknown type extends to the next tensor.
fn validate(header: &Header, file_len: u64) -> Result<Vec<Range<u64>>, Malformed> {
    let alignment = match header.metadata.get(ALIGNMENT_KEY) {
        None => DEFAULT_ALIGNMENT,
        Some(&Value::U32(n)) if n.is_power_of_two() => n.into(),
        Some(value) => {
            let found = format!("{} {value}", value.value_type());
            return Err(Malformed::Alignment { found });
        }
    };
    let data_start = header.len.next_multiple_of(alignment);
    let mut expected = 0u64;
    let mut ranges = Vec::with_capacity(header.tensors.len());
    for (i, info) in header.tensors.iter().enumerate() {
        let TensorInfo { dtype, offset, .. } = *info;
        if offset != expected {
            let tensor = info.name.clone();
            return Err(Malformed::Offset {
                tensor,
                dtype,
                found: offset,
                expected,
            });
        }
        let size_error = |source| Malformed::Size {
            tensor: info.name.clone(),
            source,
        };
        let size = match super::plan::size_bytes(dtype, &info.shape) {
            Ok(size) => size,
            Err(SizeError::UnknownType(_)) => {
                let end = match header.tensors.get(i + 1) {
                    Some(next) => next.offset,
                    None => file_len.saturating_sub(data_start),
                };
                end.saturating_sub(offset)
            }
            Err(source) => return Err(size_error(source)),
        };
        let overflow = || {
            size_error(SizeError::Overflow {
                shape: info.shape.clone(),
            })
        };
        let start = data_start.checked_add(offset).ok_or_else(overflow)?;
        let end = start.checked_add(size).ok_or_else(overflow)?;
        if end > file_len {
            let tensor = info.name.clone();
            return Err(Malformed::DataEnd {
                tensor,
                dtype,
                end,
                len: file_len,
            });
        }
        ranges.push(start..end);
        expected = offset
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(alignment))
            .ok_or_else(overflow)?;
    }
    Ok(ranges)
}

/// Reads forward through the header; every read is checked against the remaining bytes.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn offset(&self) -> u64 {
        self.at as u64
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn truncated(&self, what: &str, need: u64) -> Malformed {
        let what = what.to_owned();
        Malformed::Truncated {
            what,
            offset: self.offset(),
            need,
            have: self.left(),
        }
    }

    fn take(&mut self, what: &str, len: u64) -> Result<&'a [u8], Malformed> {
        if len > self.left() {
            return Err(self.truncated(what, len));
        }
        let start = self.at;
        self.at += len as usize;
        Ok(&self.bytes[start..self.at])
    }

    /// Fails if `count` items cannot fit in the remaining bytes, before memory is reserved for
    /// them.
    fn check_count(&self, what: &str, count: u64, item_bytes: u64) -> Result<(), Malformed> {
        match count.checked_mul(item_bytes) {
            Some(need) if need <= self.left() => Ok(()),
            need => Err(self.truncated(what, need.unwrap_or(u64::MAX))),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Malformed> {
        let bytes = self.take(what, N as u64)?;
        Ok(bytes.try_into().expect("take returned N bytes"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, Malformed> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Malformed> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &str) -> Result<&'a [u8], Malformed> {
        let len = self.u64(what)?;
        self.take(what, len)
    }

    fn text(&mut self, what: &'static str) -> Result<String, Malformed> {
        let offset = self.offset();
        let bytes = self.string(what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8 { what, offset })?;
        Ok(text.to_owned())
    }

    fn bool(&mut self, key: &str) -> Result<bool, Malformed> {
        let offset = self.offset();
        match self.array::<1>(key)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Malformed::Bool {
                key: key.to_owned(),
                found,
                offset,
            }),
        }
    }

    fn value_type(&mut self, key: &str, nested: bool) -> Result<ValueType, Malformed> {
        let offset = self.offset();
        let found = self.u32(key)?;
        ValueType::from_id(found)
            .filter(|&t| !(nested && t == ValueType::Array))
            .ok_or_else(|| Malformed::ValueType {
                key: key.to_owned(),
                found,
                offset,
                nested,
            })
    }

    fn value(&mut self, key: &str) -> Result<Value, Malformed> {
        Ok(match self.value_type(key, false)? {
            ValueType::U8 => Value::U8(self.array::<1>(key)?[0]),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            ValueType::U32 => Value::U32(self.u32(key)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            ValueType::Bool => Value::Bool(self.bool(key)?),
            ValueType::String => Value::String(BString::from(self.string(key)?)),
            ValueType::Array => Value::Array(self.items(key)?),
            ValueType::U64 => Value::U64(self.u64(key)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(key)?)),
        })
    }

    fn items(&mut self, key: &str) -> Result<Array, Malformed> {
        let item_type = self.value_type(key, true)?;
        let count = self.u64(key)?;
        macro_rules! numbers {
            ($variant:ident, $t:ty) => {{
                const SIZE: usize = size_of::<$t>();
                self.check_count(key, count, SIZE as u64)?;
                let bytes = self.take(key, count * SIZE as u64)?;
                let (chunks, _) = bytes.as_chunks::<SIZE>();
                Array::$variant(chunks.iter().map(|&b| <$t>::from_le_bytes(b)).collect())
            }};
        }
        Ok(match item_type {
            ValueType::U8 => numbers!(U8, u8),
            ValueType::I8 => numbers!(I8, i8),
            ValueType::U16 => numbers!(U16, u16),
            ValueType::I16 => numbers!(I16, i16),
            ValueType::U32 => numbers!(U32, u32),
            ValueType::I32 => numbers!(I32, i32),
            ValueType::F32 => numbers!(F32, f32),
            ValueType::U64 => numbers!(U64, u64),
            ValueType::I64 => numbers!(I64, i64),
            ValueType::F64 => numbers!(F64, f64),
            ValueType::Bool => {
                self.check_count(key, count, 1)?;
                Array::Bool(
                    (0..count)
                        .map(|_| self.bool(key))
                        .collect::<Result<_, _>>()?,
                )
            }
            ValueType::String => {
                self.check_count(key, count, 8)?;
                let mut texts = Strings::default();
                for _ in 0..count {
                    texts.push(self.string(key)?);
                }
                texts.shrink_to_fit();
                Array::String(texts)
            }
            ValueType::Array => unreachable!("value_type refuses nested arrays"),
        })
    }

    fn tensor_info(&mut self) -> Result<TensorInfo, Malformed> {
        let offset = self.offset();
        let name = self.text("tensor name")?;
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(Malformed::NameLength {
                tensor: name,
                offset,
                max: MAX_NAME_LEN,
            });
        }
        let n_axes = self.u32(&name)?;
        if !(1..=4).contains(&n_axes) {
            return Err(Malformed::Axes {
                tensor: name,
                found: n_axes,
                offset,
            });
        }
        let shape = (0..n_axes)
            .map(|_| self.u64(&name))
            .collect::<Result<_, _>>()?;
        let dtype = DType(self.u32(&name)?);
        let offset = self.u64(&name)?;
        Ok(TensorInfo {
            name,
            shape,
            dtype,
            offset,
        })
    }
}
