//! [`Imatrix`]: the importance of columns, from a file of [`schemas::imatrix`].
//!
//! An entry has the mean square of each input column of a weight over a text; for stacked experts,
//! one such row per expert.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::gguf::{Metadata, Tensor, Value};
use schemas::imatrix::{ImatrixEntry, ImatrixFile, ImatrixFormat};

pub use schemas::imatrix::ImatrixError;

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

impl Imatrix {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// The file cannot be read, or is not an importance matrix.
    pub fn open(path: &Path) -> Result<Imatrix, ImatrixError> {
        let file = ImatrixFile::open(path)?;
        let ImatrixFile {
            format, n_chunks, ..
        } = file;
        let entries = file.entries.into_iter();
        Ok(Imatrix {
            path: path.to_path_buf(),
            dataset: file.datasets.into_iter().next().map(Vec::from),
            n_chunks,
            entries: entries
                .map(|(name, entry)| (name, means(entry, format)))
                .collect(),
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

/// Divides sums by counts; a matrix that saw no token, such as a rare expert, gets ones.
fn means(entry: ImatrixEntry, format: ImatrixFormat) -> Arc<[f32]> {
    let n_columns = entry.n_columns();
    let mut values = entry.squares;
    for (values, count) in values.chunks_exact_mut(n_columns).zip(entry.counts) {
        match (count, format) {
            (0, ImatrixFormat::Gguf) => values.fill(1.0),
            // Without a number of calls, the values are means.
            (0, ImatrixFormat::Dat) => {}
            (count, _) => values.iter_mut().for_each(|value| *value /= count as f32),
        }
    }
    values.into()
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
