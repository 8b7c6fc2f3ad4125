//! [`Imatrix`]: how much each column of a weight matters, as `llama-imatrix` measures it.
//!
//! An entry holds the mean square of every input of a weight over a text; for a stack of experts
//! one such row for each expert. Read from GGUF, or from the older format without a magic number.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::gguf::{
    Array, DType, KeyError, Map, Metadata, ReadError, SourceError, Tensor, Value, open_one,
};

/// What the names of an entry's two tensors end in.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// The peer keeps texts of at most so many bytes.
const MAX_TEXT_LEN: usize = 127;

/// The importance of columns, by the names of weights.
#[derive(Clone, Debug)]
pub struct Imatrix {
    path: PathBuf,
    /// The first text that it was measured on.
    dataset: Option<Vec<u8>>,
    n_chunks: u32,
    entries: BTreeMap<String, Arc<[f32]>>,
}

/// An importance matrix could not be read, and why.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No valid GGUF.
    #[error("{0}")]
    Gguf(#[from] ReadError),
    /// The content is no importance matrix.
    #[error("{}: {kind}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        kind: ImatrixErrorKind,
    },
}

/// Why a file holds no importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixErrorKind {
    /// A model, or something else.
    #[error("is no importance matrix: {0}")]
    Key(#[from] KeyError),
    /// No entries, so nothing was measured.
    #[error("is an importance matrix without entries")]
    Empty,
    /// One half of an entry.
    #[error("tensor {found}: expected {expected} beside it")]
    Unpaired {
        /// The half that is there.
        found: String,
        /// The half that is not.
        expected: String,
    },
    /// Not numbers as they should be.
    #[error("tensor {tensor}: expected F32, found {found}")]
    DType {
        /// The name.
        tensor: String,
        /// Its type.
        found: DType,
    },
    /// Sums of so many matrices cannot be.
    #[error("entry {entry}: {n_sums} sums are no whole number of rows for {n_counts} counts")]
    Counts {
        /// Name of the weight.
        entry: String,
        /// Sums in the file.
        n_sums: usize,
        /// Counts in the file.
        n_counts: usize,
    },
    /// The data could not be read.
    #[error("tensor {tensor}: {source}")]
    Read {
        /// The name.
        tensor: String,
        /// Why.
        source: SourceError,
    },
    /// The older format ends too early, or is something else.
    #[error(
        "byte {offset}: expected {expected}; the file is neither GGUF nor an importance matrix \
         in the format before it"
    )]
    Legacy {
        /// From the start of the file.
        offset: usize,
        /// What should be there.
        expected: &'static str,
    },
}

impl Imatrix {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// The file cannot be read, or is no importance matrix.
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

    /// Keeps the entries with one of these parts in their names.
    pub fn include(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| has_part(name, parts));
    }

    /// Drops the entries with one of these parts in their names.
    pub fn exclude(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| !has_part(name, parts));
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none, which is as if there were no importance matrix.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The values of a weight: one for each column, and that for each matrix of a stack.
    pub fn entry(&self, weight: &str) -> Option<&Arc<[f32]>> {
        self.entries.get(weight)
    }

    /// The first weight by name.
    pub(crate) fn first(&self) -> Option<&str> {
        self.entries.keys().next().map(String::as_str)
    }

    /// A weight with a value that cannot be an importance, the value's place, and the value.
    pub(crate) fn find_invalid(&self) -> Option<(&str, usize, f32)> {
        self.entries.iter().find_map(|(name, values)| {
            let is_bad = |value: &f32| !value.is_finite() || *value < 0.0;
            let i = values.iter().position(is_bad)?;
            Some((name.as_str(), i, values[i]))
        })
    }

    /// Tells in a file's keys what it was quantized with.
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

/// Sums over counts; a matrix that saw no token, as a rare expert, has ones.
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

/// The format before GGUF: counts and lengths of 32 bits, without a magic number.
fn from_legacy(bytes: &[u8]) -> Result<Imatrix, ImatrixErrorKind> {
    let mut cursor = Cursor { bytes, offset: 0 };
    let n_entries = cursor.length(1, "a positive number of entries")?;
    let mut entries = BTreeMap::new();
    for _ in 0..n_entries {
        let len = cursor.length(0, "the length of a name")?;
        let name = until_nul(cursor.take(len, "a name")?);
        let name = std::str::from_utf8(name);
        let name = name.map_err(|_| cursor.error("a name in UTF-8 before it"))?;
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

/// Bytes, and how far they are read.
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

    /// A number of things that is at least `min`.
    fn length(&mut self, min: i32, what: &'static str) -> Result<usize, ImatrixErrorKind> {
        let (at, value) = (self.offset, self.i32(what)?);
        if value < min {
            self.offset = at;
            return Err(self.error(what));
        }
        Ok(value as usize)
    }
}

/// Rows of each matrix of a stack.
fn n_matrix_rows(tensor: &Tensor) -> u64 {
    tensor.shape.get(1).copied().unwrap_or(1)
}

/// The part of an entry that a tensor's rows are weighed with.
#[derive(Clone)]
pub(crate) struct Importance {
    values: Arc<[f32]>,
    n_columns: usize,
    /// Rows of one matrix: each matrix of a stack has columns of its own.
    n_rows: u64,
}

impl Importance {
    /// `None` unless there is one value for each column of each matrix.
    pub(crate) fn new(values: &Arc<[f32]>, tensor: &Tensor) -> Option<Importance> {
        let fits = values.len() as u64 == Importance::n_values(tensor);
        fits.then(|| Importance {
            values: Arc::clone(values),
            n_columns: tensor.ne0() as usize,
            n_rows: n_matrix_rows(tensor),
        })
    }

    /// Values that the tensor's entry should have.
    pub(crate) fn n_values(tensor: &Tensor) -> u64 {
        let n_matrices = tensor.n_rows().checked_div(n_matrix_rows(tensor));
        tensor.ne0().saturating_mul(n_matrices.unwrap_or(0))
    }

    /// The values for a row, all matrices taken together.
    pub(crate) fn row(&self, row: u64) -> &[f32] {
        let matrix = (row / self.n_rows) as usize;
        &self.values[matrix * self.n_columns..][..self.n_columns]
    }
}
