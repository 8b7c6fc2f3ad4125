//! Split models: shards named `NAME-00001-of-0000N.gguf`, read as one model.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::metadata::{KeyError, Metadata};
use super::plan::Plan;
use super::read::{ReadError, ReadErrorKind, open_one};

/// Key of a shard's number, from 0.
pub const SPLIT_NO: &str = "split.no";
/// Key of the number of shards.
pub const SPLIT_COUNT: &str = "split.count";
/// Key of the number of tensors in all shards.
pub const SPLIT_TENSORS: &str = "split.tensors.count";

/// Error of the shards of a split model.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// A split key is missing or mistyped.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// The file is not the first shard.
    #[error("shard {} of {count} of a split model; open the first shard instead", u64::from(*.no) + 1)]
    NotFirst {
        /// Number of this shard, from 0.
        no: u32,
        /// Number of shards.
        count: u32,
    },
    /// The name does not follow the pattern, so the other shards cannot be found.
    #[error("one of {count} shards, but the name does not end in {expected}")]
    Name {
        /// Number of shards.
        count: u32,
        /// Expected ending of the name.
        expected: String,
    },
    /// The number in the key differs from that in the name.
    #[error("expected shard {} of the split model, found shard {}", u64::from(*.expected) + 1, u64::from(*.found) + 1)]
    WrongPart {
        /// Number in the name, from 0.
        expected: u32,
        /// Number in the key, from 0.
        found: u32,
    },
    /// A shard belongs to another model, or to another split of it.
    #[error(
        "key {key}: expected {expected} as in the first shard, found {found}; the shard belongs to another model"
    )]
    OtherModel {
        /// The key that differs.
        key: &'static str,
        /// Value in the first shard.
        expected: u32,
        /// Value in this shard.
        found: u32,
    },
    /// There are more shards than any writer can number.
    #[error("one of {count} shards, expected at most 65535")]
    TooMany {
        /// Number of shards.
        count: u32,
    },
    /// A tensor is in two shards.
    #[error("tensor {tensor} also appears in an earlier shard")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// The number of tensors is wrong.
    #[error("{found} tensors in all shards, expected {expected}")]
    TensorCount {
        /// Number of tensors in the shards.
        found: usize,
        /// Number of tensors stated by the key.
        expected: u32,
    },
}

/// Returns the ending of the name of shard `no` (from 0) of `count`.
pub(super) fn ending(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// Returns the paths of all shards of a model, given the first one; for a model that is not split,
/// this path.
///
/// # Errors
/// The file cannot be read, or is not the first shard.
pub fn part_paths(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    parts_of(path, &open_one(path)?.metadata)
}

fn error(path: &Path, e: impl Into<SplitError>) -> ReadError {
    ReadError {
        path: path.to_path_buf(),
        kind: ReadErrorKind::Split(e.into()),
    }
}

/// [`part_paths`] for a file with this metadata.
fn parts_of(path: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>, ReadError> {
    // `llama-gguf-split --merge` leaves `split.count = 0` in a merged file.
    let count = metadata.u32(SPLIT_COUNT).map_err(|e| error(path, e))?;
    let count = match count.unwrap_or(0) {
        0 => return Ok(vec![path.to_path_buf()]),
        // llama.cpp stores the number in 16 bits. Checked before a list of paths is created.
        count @ 65_536.. => return Err(error(path, SplitError::TooMany { count })),
        count => count,
    };
    let no = metadata.need_u32(SPLIT_NO).map_err(|e| error(path, e))?;
    if no != 0 {
        return Err(error(path, SplitError::NotFirst { no, count }));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(stem) = name.strip_suffix(&ending(0, count)) else {
        let expected = ending(0, count);
        return Err(error(path, SplitError::Name { count, expected }));
    };
    let part = |no| path.with_file_name(format!("{stem}{}", ending(no, count)));
    Ok((0..count).map(part).collect())
}

/// Completes the plan of a first shard with the other shards.
pub(super) fn join(path: &Path, first: Plan) -> Result<Plan, ReadError> {
    let mut whole = first;
    let paths = parts_of(path, &whole.metadata)?;
    if whole.metadata.u32(SPLIT_COUNT).is_ok_and(|n| n > Some(0)) {
        let need = |path: &Path, m: &Metadata, key| m.need_u32(key).map_err(|e| error(path, e));
        let n_tensors = need(path, &whole.metadata, SPLIT_TENSORS)?;
        let mut names: HashSet<String> = whole.tensors.iter().map(|t| t.name.clone()).collect();
        for (no, path) in (0u32..).zip(&paths).skip(1) {
            let part = open_one(path)?;
            let found = need(path, &part.metadata, SPLIT_NO)?;
            if found != no {
                return Err(error(
                    path,
                    SplitError::WrongPart {
                        expected: no,
                        found,
                    },
                ));
            }
            for (key, expected) in [
                (SPLIT_COUNT, paths.len() as u32),
                (SPLIT_TENSORS, n_tensors),
            ] {
                let found = need(path, &part.metadata, key)?;
                if found != expected {
                    return Err(error(
                        path,
                        SplitError::OtherModel {
                            key,
                            expected,
                            found,
                        },
                    ));
                }
            }
            for tensor in part.tensors {
                if !names.insert(tensor.name.clone()) {
                    let tensor = tensor.name;
                    return Err(error(path, SplitError::DuplicateTensor { tensor }));
                }
                whole.tensors.push(tensor);
            }
        }
        if whole.tensors.len() != n_tensors as usize {
            let found = whole.tensors.len();
            let expected = n_tensors;
            return Err(error(path, SplitError::TensorCount { found, expected }));
        }
    }
    for key in [SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS] {
        whole.metadata.remove(key);
    }
    Ok(whole)
}
