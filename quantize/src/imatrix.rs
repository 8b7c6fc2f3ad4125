//! [`Imatrix`]: an importance matrix, as `llama-imatrix` writes it.
//!
//! An entry has the mean square of each input column of a weight over a text; for stacked experts,
//! one such row per expert. Reads GGUF and the legacy format, which has no magic number.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::gguf::{
    Array, DType, KeyError, Map, Metadata, ReadError, SourceError, Tensor, Value, open_one,
};

/// Suffixes of the two tensors of an entry.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// Maximum length of a text in bytes; llama.cpp truncates there.
const MAX_TEXT_LEN: usize = 127;

/// Importance of columns, by names of weights.
#[derive(Clone, Debug)]
pub struct Imatrix {
    path: PathBuf,
    /// Name of the first text that it was measured on.
    dataset: Option<Vec<u8>>,
    n_chunks: u32,
    entries: BTreeMap<String, Arc<[f32]>>,
}

/// Error of reading an importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not valid GGUF.
    #[error("{0}")]
    Gguf(#[from] ReadError),
    /// The contents are not an importance matrix.
    #[error("{}: {kind}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        kind: ImatrixErrorKind,
    },
}

/// Fault of an importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixErrorKind {
    /// A key is missing, as in a model file.
    #[error("not an importance matrix: {0}")]
    Key(#[from] KeyError),
    /// There are no entries.
    #[error("the importance matrix has no entries")]
    Empty,
    /// One of the two tensors of an entry is missing.
    #[error("tensor {found}: tensor {expected} is missing")]
    Unpaired {
        /// The tensor that is present.
        found: String,
        /// The tensor that is missing.
        expected: String,
    },
    /// A tensor has the wrong element type.
    #[error("tensor {tensor}: expected F32, found {found}")]
    DType {
        /// Name of the tensor.
        tensor: String,
        /// Its type.
        found: DType,
    },
    /// The number of sums is not a multiple of the number of counts.
    #[error("entry {entry}: {n_sums} sums, expected a multiple of the {n_counts} counts")]
    Counts {
        /// Name of the weight.
        entry: String,
        /// Number of sums in the file.
        n_sums: usize,
        /// Number of counts in the file.
        n_counts: usize,
    },
    /// Data cannot be read.
    #[error("tensor {tensor}: {source}")]
    Read {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: SourceError,
    },
    /// A file in the legacy format is truncated, or is another kind of file.
    #[error(
        "byte {offset}: expected {expected}; the file is neither GGUF nor an importance matrix in the older binary format"
    )]
    Legacy {
        /// Offset from the start of the file.
        offset: usize,
        /// The expected item.
        expected: &'static str,
    },
}

impl Imatrix {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// The file cannot be read, or is not an importance matrix.
    pub fn open(path: &Path) -> Result<Imatrix, ImatrixError> {
        let map = Map::open(path).map_err(|source| ImatrixError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        let read = match map.bytes().starts_with(b"GGUF") {
            true => {
                let plan = open_one(path)?;
                from_gguf(&plan.metadata, &plan.tensors)
            }
            false => from_legacy(map.bytes()),
        };
        let content = |kind| ImatrixError::Content {
            path: path.to_path_buf(),
            kind,
        };
        let read = read.map_err(content)?;
        if read.entries.is_empty() {
            return Err(content(ImatrixErrorKind::Empty));
        }
        Ok(Imatrix {
            path: path.to_path_buf(),
            ..read
        })
    }

    /// Keeps only entries whose names contain one of these parts.
    pub fn include(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| has_part(name, parts));
    }

    /// Removes entries whose names contain one of these parts.
    pub fn exclude(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| !has_part(name, parts));
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Checks whether there are no entries; the matrix then has no effect.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the values of a weight: one per column, for each matrix of a stack.
    pub fn entry(&self, weight: &str) -> Option<&Arc<[f32]>> {
        self.entries.get(weight)
    }

    /// Returns the first name of a weight.
    pub(crate) fn first(&self) -> Option<&str> {
        self.entries.keys().next().map(String::as_str)
    }

    /// Finds a value that is negative or not finite: its weight, its index, and the value.
    pub(crate) fn find_invalid(&self) -> Option<(&str, usize, f32)> {
        self.entries.iter().find_map(|(name, values)| {
            let is_bad = |value: &f32| !value.is_finite() || *value < 0.0;
            let i = values.iter().position(is_bad)?;
            Some((name.as_str(), i, values[i]))
        })
    }

    /// Sets the keys that describe the importance matrix of a quantized file.
    pub(crate) fn describe(&self, metadata: &mut Metadata) {
        let text = |bytes: &[u8]| {
            let len = bytes.len().min(MAX_TEXT_LEN);
            Value::String(bytes[..len].to_vec().into())
        };
        let file = text(self.path.as_os_str().as_encoded_bytes());
        metadata.set_last("quantize.imatrix.file", file);
        if let Some(dataset) = &self.dataset {
            metadata.set_last("quantize.imatrix.dataset", text(dataset));
        }
        metadata.set_last("quantize.imatrix.entries_count", self.len() as u32);
        if self.n_chunks > 0 {
            metadata.set_last("quantize.imatrix.chunks_count", self.n_chunks);
        }
    }
}

fn has_part(name: &str, parts: &[String]) -> bool {
    parts.iter().any(|part| name.contains(part.as_str()))
}

fn from_gguf(metadata: &Metadata, tensors: &[Tensor]) -> Result<Imatrix, ImatrixErrorKind> {
    let missing = |key: &str| KeyError::Missing {
        key: key.to_owned(),
    };
    let datasets = metadata.get(DATASETS).ok_or_else(|| missing(DATASETS))?;
    let n_chunks = metadata.need_u32(CHUNK_COUNT)?;
    metadata.need_u32(CHUNK_SIZE)?;
    let dataset = match datasets.as_array() {
        Some(Array::String(texts)) => texts.get(0).map(|text| text.to_vec()),
        _ => None,
    };
    let by_name: BTreeMap<&str, &Tensor> = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let pair = |found: &str, expected: String| match by_name.get(expected.as_str()) {
        Some(&tensor) => Ok(tensor),
        None => Err(ImatrixErrorKind::Unpaired {
            found: found.to_owned(),
            expected,
        }),
    };
    let mut entries = BTreeMap::new();
    for (&name, &tensor) in &by_name {
        if let Some(weight) = name.strip_suffix(SUMS) {
            let counts = pair(name, format!("{weight}{COUNTS}"))?;
            entries.insert(weight.to_owned(), mean(weight, tensor, counts)?);
        } else if let Some(weight) = name.strip_suffix(COUNTS) {
            pair(name, format!("{weight}{SUMS}"))?;
        }
    }
    Ok(Imatrix {
        path: PathBuf::new(),
        dataset,
        n_chunks: i32::try_from(n_chunks).map_or(0, i32::unsigned_abs),
        entries,
    })
}

/// Divides sums by counts; a matrix that saw no token, such as a rare expert, gets ones.
fn mean(weight: &str, sums: &Tensor, counts: &Tensor) -> Result<Arc<[f32]>, ImatrixErrorKind> {
    let counts = floats(counts)?;
    let mut values = floats(sums)?;
    let n_columns = match values.len().checked_div(counts.len()) {
        Some(n) if n > 0 && n * counts.len() == values.len() => n,
        _ => {
            return Err(ImatrixErrorKind::Counts {
                entry: weight.to_owned(),
                n_sums: values.len(),
                n_counts: counts.len(),
            });
        }
    };
    for (values, count) in values.chunks_exact_mut(n_columns).zip(counts) {
        let count = count.round();
        match count > 0.0 {
            true => values.iter_mut().for_each(|value| *value /= count),
            false => values.fill(1.0),
        }
    }
    Ok(values.into())
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>, ImatrixErrorKind> {
    if tensor.dtype != DType::F32 {
        return Err(ImatrixErrorKind::DType {
            tensor: tensor.name.clone(),
            found: tensor.dtype,
        });
    }
    let bytes = tensor.read_all().map_err(|source| ImatrixErrorKind::Read {
        tensor: tensor.name.clone(),
        source,
    })?;
    Ok(le_floats(&bytes))
}

fn le_floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks();
    values
        .iter()
        .map(|&value| f32::from_le_bytes(value))
        .collect()
}

/// Reads the legacy format: 32-bit counts and lengths, without a magic number.
fn from_legacy(bytes: &[u8]) -> Result<Imatrix, ImatrixErrorKind> {
    let mut cursor = Cursor { bytes, offset: 0 };
    let n_entries = cursor.length(1, "a positive number of entries")?;
    let mut entries = BTreeMap::new();
    for _ in 0..n_entries {
        let len = cursor.length(0, "the length of a name")?;
        let name = until_nul(cursor.take(len, "a name")?);
        let name = std::str::from_utf8(name);
        let name = name.map_err(|_| cursor.error("a UTF-8 name"))?;
        let n_calls = cursor.i32("a number of calls")?;
        let n_values = cursor.length(1, "a positive number of values")?;
        let n_bytes = n_values.saturating_mul(size_of::<f32>());
        let mut values = le_floats(cursor.take(n_bytes, "the values of an entry")?);
        if n_calls > 0 {
            values.iter_mut().for_each(|value| *value /= n_calls as f32);
        }
        entries.insert(name.to_owned(), values.into());
    }
    let (mut n_chunks, mut dataset) = (0, None);
    if !cursor.rest().is_empty() {
        n_chunks = cursor.i32("a number of chunks")?.max(0) as u32;
    }
    if !cursor.rest().is_empty() {
        let len = cursor.length(0, "the length of a text's name")?;
        let name = until_nul(cursor.take(len, "the name of a text")?);
        dataset = (len > 0).then(|| name.to_vec());
    }
    Ok(Imatrix {
        path: PathBuf::new(),
        dataset,
        n_chunks,
        entries,
    })
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// A reading position in bytes.
struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.offset..]
    }

    fn error(&self, expected: &'static str) -> ImatrixErrorKind {
        ImatrixErrorKind::Legacy {
            offset: self.offset,
            expected,
        }
    }

    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], ImatrixErrorKind> {
        let taken = self.rest().get(..len).ok_or_else(|| self.error(what))?;
        self.offset += len;
        Ok(taken)
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, ImatrixErrorKind> {
        let bytes = self.take(size_of::<i32>(), what)?;
        let (value, _) = bytes.split_first_chunk().ok_or_else(|| self.error(what))?;
        Ok(i32::from_le_bytes(*value))
    }

    /// Reads a count that must be at least `min`.
    fn length(&mut self, min: i32, what: &'static str) -> Result<usize, ImatrixErrorKind> {
        let (at, value) = (self.offset, self.i32(what)?);
        if value < min {
            self.offset = at;
            return Err(self.error(what));
        }
        Ok(value as usize)
    }
}

/// Returns the rows of each matrix of a stack.
fn n_matrix_rows(tensor: &Tensor) -> u64 {
    tensor.shape.get(1).copied().unwrap_or(1)
}

/// Importance values of one tensor.
#[derive(Clone)]
pub(crate) struct Importance {
    values: Arc<[f32]>,
    n_columns: usize,
    /// Rows of one matrix: each matrix of a stack has its own column values.
    n_rows: u64,
}

impl Importance {
    /// Returns `None` unless there is one value per column of each matrix.
    pub(crate) fn new(values: &Arc<[f32]>, tensor: &Tensor) -> Option<Importance> {
        let fits = values.len() as u64 == Importance::n_values(tensor);
        fits.then(|| Importance {
            values: Arc::clone(values),
            n_columns: tensor.ne0() as usize,
            n_rows: n_matrix_rows(tensor),
        })
    }

    /// Returns the expected number of values of the tensor's entry.
    pub(crate) fn n_values(tensor: &Tensor) -> u64 {
        let n_matrices = tensor.n_rows().checked_div(n_matrix_rows(tensor));
        tensor.ne0().saturating_mul(n_matrices.unwrap_or(0))
    }

    /// Returns the values for a row, counted over all matrices.
    pub(crate) fn row(&self, row: u64) -> &[f32] {
        let matrix = (row / self.n_rows) as usize;
        &self.values[matrix * self.n_columns..][..self.n_columns]
    }
}
