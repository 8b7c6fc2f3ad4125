//! [`ImatrixFile`]: an importance matrix in the formats of `llama-imatrix`, GGUF and the older `.dat`.
//!
//! An entry has sums over the inputs of a weight: for each input column the sum of squares and the sum, and
//! the number of rows; for stacked experts, one such set per expert.

mod dat;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bstr::BString;

use crate::gguf::{
    Array, DType, KeyError, Map, Metadata, Owned, Plan, ReadError, SourceError, Strings, Tensor,
    open_one,
};

/// Suffixes of the tensors of an entry.
const SQUARES: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const SUMS: &str = ".in_sum";
const STATISTICS: &str = ".stats";

const GENERAL_TYPE: &str = "general.type";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";
const N_LAYER_NEXTN: &str = "imatrix.n_layer_nextn";
const STATS_SCHEMA: &str = "imatrix.stats_schema";

/// Names of the statistics of an entry, in file order.
pub const STATISTIC_NAMES: [&str; 12] = [
    "sum_sq",
    "mean",
    "elements",
    "std_deviation",
    "skewness",
    "kurtosis",
    "gain",
    "h_norm",
    "l2_dist",
    "cossim",
    "pearson",
    "covariance",
];

/// The statistics of an entry, in the order of [`STATISTIC_NAMES`].
pub type Statistics = [f32; STATISTIC_NAMES.len()];

/// The format of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImatrixFormat {
    /// GGUF: sums and counts.
    #[default]
    Gguf,
    /// The older binary format: means, as sums over calls. It has no sums of values.
    Dat,
}

/// An importance matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImatrixFile {
    /// Format that it was read from.
    pub format: ImatrixFormat,
    /// Names of the texts that it was collected on.
    pub datasets: Vec<BString>,
    /// Number of chunks.
    pub n_chunks: u32,
    /// Chunk length in tokens; 0 if unknown.
    pub chunk_size: u32,
    /// Number of MTP heads among the layers, which are the last ones.
    pub n_heads: u32,
    /// The entries by name of the weight.
    pub entries: BTreeMap<String, ImatrixEntry>,
}

/// Sums over the inputs of one weight. The columns of a stack are those of its first matrix, then of the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImatrixEntry {
    /// Sum of the squares of each column.
    pub squares: Vec<f32>,
    /// Sum of each column; `None` in files of older versions.
    pub sums: Option<Vec<f32>>,
    /// Rows of each matrix of a stack, or one number for all. Calls in the older format.
    pub counts: Vec<u64>,
}

impl ImatrixEntry {
    /// Returns the number of sums per count.
    pub fn n_columns(&self) -> usize {
        self.squares.len() / self.counts.len().max(1)
    }

    /// Returns the indices of the matrices that no row was multiplied with.
    pub fn unused(&self) -> impl Iterator<Item = usize> {
        let counts = self.counts.iter().enumerate();
        counts.filter(|(_, n)| **n == 0).map(|(i, _)| i)
    }
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
    /// The numbers of sums and of sums of squares differ.
    #[error("entry {entry}: {found} sums, expected {expected} as there are sums of squares")]
    Sums {
        /// Name of the weight.
        entry: String,
        /// Number of sums in the file.
        found: usize,
        /// Number of sums of squares in the file.
        expected: usize,
    },
    /// Data cannot be read.
    #[error("tensor {tensor}: {source}")]
    Read {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: SourceError,
    },
    /// A file in the older format is truncated, or is another kind of file.
    #[error(
        "byte {offset}: expected {expected}; the file is neither GGUF nor an importance matrix in the older binary format"
    )]
    Dat {
        /// Offset from the start of the file.
        offset: usize,
        /// The expected item.
        expected: &'static str,
    },
}

/// Two importance matrices cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}: {found} {what}, expected {expected} as in the files before")]
pub struct MergeError {
    /// Name of the weight.
    pub entry: String,
    /// The items that differ in number.
    pub what: &'static str,
    /// Their number in the file.
    pub found: usize,
    /// Their number in the files before.
    pub expected: usize,
}

impl ImatrixFile {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// The file cannot be read, or is not an importance matrix.
    pub fn open(path: &Path) -> Result<ImatrixFile, ImatrixError> {
        let map = Map::open(path).map_err(|source| ImatrixError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        let read = match map.bytes().starts_with(b"GGUF") {
            true => {
                let plan = open_one(path)?;
                ImatrixFile::from_tensors(&plan.metadata, &plan.tensors)
            }
            false => dat::read(map.bytes()),
        };
        let content = |kind| ImatrixError::Content {
            path: path.to_path_buf(),
            kind,
        };
        let read = read.map_err(content)?;
        match read.entries.is_empty() {
            true => Err(content(ImatrixErrorKind::Empty)),
            false => Ok(read),
        }
    }

    fn from_tensors(
        metadata: &Metadata,
        tensors: &[Tensor],
    ) -> Result<ImatrixFile, ImatrixErrorKind> {
        let missing = |key: &str| KeyError::Missing {
            key: key.to_owned(),
        };
        let datasets = metadata.get(DATASETS).ok_or_else(|| missing(DATASETS))?;
        let n_chunks = metadata.need_u32(CHUNK_COUNT)?;
        let chunk_size = metadata.need_u32(CHUNK_SIZE)?;
        let datasets = match datasets.as_array() {
            Some(Array::String(texts)) => texts.iter().map(|text| text.to_owned()).collect(),
            _ => Vec::new(),
        };
        let by_name: BTreeMap<&str, &Tensor> =
            tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let pair = |found: &str, expected: String| match by_name.get(expected.as_str()) {
            Some(&tensor) => Ok(tensor),
            None => Err(ImatrixErrorKind::Unpaired {
                found: found.to_owned(),
                expected,
            }),
        };
        let mut entries = BTreeMap::new();
        for (&name, &squares) in &by_name {
            if let Some(weight) = name.strip_suffix(SQUARES) {
                let counts = pair(name, format!("{weight}{COUNTS}"))?;
                let sums = by_name.get(format!("{weight}{SUMS}").as_str());
                let entry = entry(weight, squares, counts, sums.copied())?;
                entries.insert(weight.to_owned(), entry);
            } else if let Some(weight) = name.strip_suffix(COUNTS) {
                pair(name, format!("{weight}{SQUARES}"))?;
            }
        }
        Ok(ImatrixFile {
            format: ImatrixFormat::Gguf,
            datasets,
            n_chunks: i32::try_from(n_chunks).map_or(0, i32::unsigned_abs),
            chunk_size,
            n_heads: metadata.u32(N_LAYER_NEXTN)?.unwrap_or_default(),
            entries,
        })
    }

    /// Returns the plan of a GGUF file with these entries and their statistics.
    pub fn plan(&self, statistics: &BTreeMap<String, Statistics>) -> Plan {
        let mut metadata = Metadata::new();
        metadata.set(GENERAL_TYPE, "imatrix");
        metadata.set(DATASETS, self.datasets.iter().collect::<Strings>());
        metadata.set(CHUNK_COUNT, self.n_chunks);
        metadata.set(CHUNK_SIZE, self.chunk_size);
        if self.n_heads > 0 {
            metadata.set(N_LAYER_NEXTN, self.n_heads);
        }
        let names = STATISTIC_NAMES.iter().collect::<Strings>();
        metadata.set(STATS_SCHEMA, names);
        let mut plan = Plan::new(metadata);
        for (weight, entry) in &self.entries {
            let (n_columns, n) = (entry.n_columns(), entry.counts.len());
            let counts: Vec<f32> = entry.counts.iter().map(|&n| n as f32).collect();
            let mut add = |suffix: &str, values: &[f32], n_columns: usize| {
                let shape = match values.len() / n_columns.max(1) {
                    1 => vec![n_columns as u64],
                    n => vec![n_columns as u64, n as u64],
                };
                plan.tensors
                    .push(f32_tensor(format!("{weight}{suffix}"), shape, values));
            };
            if n > 0 && n_columns > 0 {
                add(SQUARES, &entry.squares, n_columns);
                add(COUNTS, &counts, 1);
                if let Some(sums) = &entry.sums {
                    add(SUMS, sums, n_columns);
                }
            }
            if let Some(statistics) = statistics.get(weight) {
                add(STATISTICS, statistics, statistics.len());
            }
        }
        plan
    }

    /// Returns the bytes of a file in the older format, without the entries that no row was seen of.
    pub fn to_dat(&self) -> Vec<u8> {
        dat::write(self)
    }

    /// Adds the sums of another file. A file in the older format counts calls, each of which is taken for a
    /// chunk: of the size in the files before, else of `n_ctx` tokens.
    ///
    /// # Errors
    /// An entry has another number of sums or counts; then some entries may have been added.
    pub fn add(&mut self, other: &ImatrixFile, n_ctx: u32) -> Result<(), MergeError> {
        if self.n_heads == 0 {
            self.n_heads = other.n_heads;
        }
        if self.chunk_size == 0 && other.format == ImatrixFormat::Gguf {
            self.chunk_size = other.chunk_size;
        }
        let chunk_size = match self.chunk_size {
            0 => n_ctx,
            size => size,
        };
        for (name, added) in &other.entries {
            let is_new = !self.entries.contains_key(name);
            let entry = self.entries.entry(name.clone()).or_default();
            match other.format {
                ImatrixFormat::Gguf => entry.add(added, is_new),
                ImatrixFormat::Dat => entry.add_calls(added, is_new, chunk_size),
            }
            .map_err(|error| MergeError {
                entry: name.clone(),
                ..error
            })?;
        }
        self.datasets.extend_from_slice(&other.datasets);
        let counts = self.entries.values().flat_map(|entry| &entry.counts);
        let n_most = counts.max().copied().unwrap_or_default();
        let n_chunks = (n_most + u64::from(chunk_size / 2)) / u64::from(chunk_size.max(1));
        self.n_chunks = u32::try_from(n_chunks).unwrap_or(u32::MAX);
        if self.chunk_size == 0 {
            self.chunk_size = n_ctx;
        }
        Ok(())
    }
}

impl ImatrixEntry {
    fn add(&mut self, other: &ImatrixEntry, is_new: bool) -> Result<(), MergeError> {
        if is_new {
            *self = other.clone();
            return Ok(());
        }
        same("sums of squares", other.squares.len(), self.squares.len())?;
        if self.counts.len() == 1 {
            self.counts.resize(other.counts.len(), self.counts[0]);
        }
        same("counts", other.counts.len(), self.counts.len())?;
        add_all(&mut self.squares, &other.squares, 1.0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        match (&mut self.sums, &other.sums) {
            (Some(sums), Some(more)) => add_all(sums, more, 1.0),
            (sums, _) => *sums = None,
        }
        Ok(())
    }

    /// Adds an entry that counts calls.
    fn add_calls(
        &mut self,
        other: &ImatrixEntry,
        is_new: bool,
        chunk_size: u32,
    ) -> Result<(), MergeError> {
        if is_new {
            self.squares = vec![0.0; other.squares.len()];
            self.counts = vec![0];
        }
        same("sums of squares", other.squares.len(), self.squares.len())?;
        add_all(&mut self.squares, &other.squares, chunk_size as f32);
        let n_rows = other.counts.first().copied().unwrap_or_default() * u64::from(chunk_size);
        self.counts.iter_mut().for_each(|count| *count += n_rows);
        self.sums = None;
        Ok(())
    }
}

fn same(what: &'static str, found: usize, expected: usize) -> Result<(), MergeError> {
    match found == expected {
        true => Ok(()),
        false => Err(MergeError {
            entry: String::new(),
            what,
            found,
            expected,
        }),
    }
}

fn add_all(sums: &mut [f32], more: &[f32], factor: f32) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += more * factor;
    }
}

fn entry(
    weight: &str,
    squares: &Tensor,
    counts: &Tensor,
    sums: Option<&Tensor>,
) -> Result<ImatrixEntry, ImatrixErrorKind> {
    let counts = floats(counts)?;
    let squares = floats(squares)?;
    if counts.is_empty() || squares.is_empty() || !squares.len().is_multiple_of(counts.len()) {
        return Err(ImatrixErrorKind::Counts {
            entry: weight.to_owned(),
            n_sums: squares.len(),
            n_counts: counts.len(),
        });
    }
    let sums = sums.map(floats).transpose()?;
    if let Some(sums) = sums.as_ref().filter(|sums| sums.len() != squares.len()) {
        return Err(ImatrixErrorKind::Sums {
            entry: weight.to_owned(),
            found: sums.len(),
            expected: squares.len(),
        });
    }
    Ok(ImatrixEntry {
        squares,
        sums,
        // Negative counts and NaN count as 0.
        counts: counts.into_iter().map(|n| n.round() as u64).collect(),
    })
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

fn f32_tensor(name: String, shape: Vec<u64>, values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let row_bytes = shape[0] * size_of::<f32>() as u64;
    Tensor {
        name,
        shape,
        dtype: DType::F32,
        size_bytes: bytes.len() as u64,
        source: Arc::new(Owned { bytes, row_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(format: ImatrixFormat, entries: &[(&str, ImatrixEntry)]) -> ImatrixFile {
        let entries = entries
            .iter()
            .map(|(name, entry)| ((*name).to_owned(), entry.clone()));
        ImatrixFile {
            format,
            datasets: vec!["a.txt".into()],
            n_chunks: 2,
            chunk_size: match format {
                ImatrixFormat::Gguf => 4,
                ImatrixFormat::Dat => 0,
            },
            n_heads: 0,
            entries: entries.collect(),
        }
    }

    fn entry(squares: &[f32], sums: Option<&[f32]>, counts: &[u64]) -> ImatrixEntry {
        ImatrixEntry {
            squares: squares.to_vec(),
            sums: sums.map(<[f32]>::to_vec),
            counts: counts.to_vec(),
        }
    }

    #[test]
    fn a_written_file_is_read_again() {
        let expected = file(
            ImatrixFormat::Gguf,
            &[
                ("b", entry(&[1.0, 2.0], Some(&[0.5, -1.0]), &[8])),
                ("a", entry(&[1.0, 2.0, 3.0, 4.0], None, &[8, 0])),
            ],
        );
        let plan = expected.plan(&BTreeMap::from([("b".to_owned(), [1.0; 12])]));
        let names: Vec<_> = plan.tensors.iter().map(|t| t.name.as_str()).collect();
        let in_order = [
            "a.in_sum2",
            "a.counts",
            "b.in_sum2",
            "b.counts",
            "b.in_sum",
            "b.stats",
        ];
        assert_eq!(names, in_order);
        assert_eq!(plan.tensors[0].shape, [2, 2]);
        assert_eq!(plan.tensors[1].shape, [1, 2]);
        assert_eq!(plan.tensors[3].shape, [1]);
        let found = ImatrixFile::from_tensors(&plan.metadata, &plan.tensors).unwrap();
        assert_eq!(found, expected);
        assert_eq!(
            found.entries["a"].unused().collect::<Vec<_>>(),
            [1],
            "the second matrix saw no row"
        );
    }

    #[test]
    fn sums_are_added() {
        let gguf = |name, squares: &[f32], n| {
            file(
                ImatrixFormat::Gguf,
                &[(name, entry(squares, Some(squares), &[n]))],
            )
        };
        let mut merged = ImatrixFile::default();
        merged.add(&gguf("a", &[1.0, 2.0], 8), 512).unwrap();
        merged.add(&gguf("a", &[4.0, 8.0], 4), 512).unwrap();
        assert_eq!(
            merged.entries["a"],
            entry(&[5.0, 10.0], Some(&[5.0, 10.0]), &[12])
        );
        assert_eq!((merged.n_chunks, merged.chunk_size), (3, 4));
        assert_eq!(merged.datasets.len(), 2);
        let older = file(ImatrixFormat::Dat, &[("a", entry(&[1.0, 1.0], None, &[2]))]);
        merged.add(&older, 512).unwrap();
        assert_eq!(merged.entries["a"], entry(&[9.0, 14.0], None, &[20]));
        let error = merged.add(&gguf("a", &[1.0], 8), 512).unwrap_err();
        assert_eq!(
            error.to_string(),
            "entry a: 1 sums of squares, expected 2 as in the files before"
        );
    }

    #[test]
    fn the_older_format_has_means_per_call() {
        let two = entry(&[8.0, 16.0, 5.0, 5.0], None, &[8, 0]);
        let gguf = file(
            ImatrixFormat::Gguf,
            &[("a", two), ("b", entry(&[1.0], None, &[0]))],
        );
        let found = dat::read(&gguf.to_dat()).unwrap();
        assert_eq!(
            found.entries,
            BTreeMap::from([("a".to_owned(), entry(&[2.0, 4.0, 2.0, 2.0], None, &[2]))])
        );
        assert_eq!((found.n_chunks, &found.datasets), (2, &gguf.datasets));
    }
}
