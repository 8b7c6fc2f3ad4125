//! Split models: parts named `NAME-00001-of-0000N.gguf`, read as one.

use std::path::{Path, PathBuf};

use super::metadata::{KeyError, Metadata};
use super::plan::Plan;
use super::read::{ReadError, ReadErrorKind, open_one};

/// Key of a part's number, from 0.
pub const SPLIT_NO: &str = "split.no";
/// Key of the number of parts.
pub const SPLIT_COUNT: &str = "split.count";
/// Key of the number of tensors over all parts.
pub const SPLIT_TENSORS: &str = "split.tensors.count";

/// Why parts do not make a model.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// A split key is missing or mistyped.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// Opened from the middle.
    #[error("part {} of {count} of a split model; open the first part instead", u64::from(*.no) + 1)]
    NotFirst {
        /// Number of this part, from 0.
        no: u32,
        /// Number of parts.
        count: u32,
    },
    /// The name does not follow the pattern, so the other parts cannot be found.
    #[error("one of {count} parts, but the name does not end in {expected}")]
    Name {
        /// Number of parts.
        count: u32,
        /// The ending that it should have.
        expected: String,
    },
    /// A part says that it is another one.
    #[error("expected part {} of the split model, found part {}", u64::from(*.expected) + 1, u64::from(*.found) + 1)]
    WrongPart {
        /// Number by the name, from 0.
        expected: u32,
        /// Number by the key, from 0.
        found: u32,
    },
    /// A tensor stands in two parts.
    #[error("tensor {tensor} appears in an earlier part too")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// Tensors are missing, or too many.
    #[error("{found} tensors over all parts, expected {expected}")]
    TensorCount {
        /// Tensors found.
        found: usize,
        /// Tensors by the key.
        expected: u32,
    },
}

/// The ending of part `no` (from 0) of `count`.
fn ending(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// Completes a plan that was opened from a first part with the other parts.
pub(super) fn join(path: &Path, first: Plan) -> Result<Plan, ReadError> {
    let error = |path: &Path, e: SplitError| ReadError {
        path: path.to_path_buf(),
        kind: ReadErrorKind::Split(e),
    };
    let part_of = |path: &Path, m: &Metadata| -> Result<(u32, u32), ReadError> {
        let read = || Ok((m.need_u32(SPLIT_NO)?, m.need_u32(SPLIT_COUNT)?));
        read().map_err(|e: KeyError| error(path, e.into()))
    };
    let mut whole = first;
    // The peer's merge tool leaves `split.count = 0` behind in a whole file.
    let count = whole
        .metadata
        .u32(SPLIT_COUNT)
        .map_err(|e| error(path, e.into()))?
        .unwrap_or(0);
    if count > 0 {
        let (no, count) = part_of(path, &whole.metadata)?;
        if no != 0 {
            return Err(error(path, SplitError::NotFirst { no, count }));
        }
        let expected = whole
            .metadata
            .need_u32(SPLIT_TENSORS)
            .map_err(|e| error(path, e.into()))?;
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some(stem) = name.strip_suffix(&ending(0, count)) else {
            return Err(error(
                path,
                SplitError::Name {
                    count,
                    expected: ending(0, count),
                },
            ));
        };
        for no in 1..count {
            let part_path: PathBuf = path.with_file_name(format!("{stem}{}", ending(no, count)));
            let part = open_one(&part_path)?;
            let (found, _) = part_of(&part_path, &part.metadata)?;
            if found != no {
                return Err(error(
                    &part_path,
                    SplitError::WrongPart {
                        expected: no,
                        found,
                    },
                ));
            }
            for tensor in part.tensors {
                if whole.tensor(&tensor.name).is_some() {
                    let tensor = tensor.name;
                    return Err(error(&part_path, SplitError::DuplicateTensor { tensor }));
                }
                whole.tensors.push(tensor);
            }
        }
        if whole.tensors.len() != expected as usize {
            let found = whole.tensors.len();
            return Err(error(path, SplitError::TensorCount { found, expected }));
        }
    }
    for key in [SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS] {
        whole.metadata.remove(key);
    }
    Ok(whole)
}
