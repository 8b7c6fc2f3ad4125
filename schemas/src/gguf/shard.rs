//! One plan as the parts of a split model; [`open`](super::open) reads them as one again.
//!
//! Two of the peer's tools write parts, and differ in how they count bytes and in the order of the
//! keys: [`ShardStyle`] names them.

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::plan::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Plan};
use super::split::{self, SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS};

/// Whose parts they should be, byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardStyle {
    /// The peer's converter: a part's bytes are those of its tensors, and what fits in one file is
    /// no split model. Its quantizer has the same keys.
    Converter,
    /// The peer's split tool: a part's bytes are those of its tensors and the padding behind them,
    /// and a single part is numbered too.
    SplitTool,
}

/// Where to cut. A part always gets a tensor, however large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Most bytes of tensors in a part; no limit if absent.
    pub max_bytes: Option<u64>,
    /// Most tensors in a part; no limit if absent.
    pub max_tensors: Option<usize>,
    /// The first part holds the keys and no tensor.
    pub tensor_free_first: bool,
    /// Whose parts they should be.
    pub style: ShardStyle,
}

/// A model cannot be cut like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// Their number is kept in 16 bits.
    #[error("{found} parts, expected at most 65535; allow more tensors or bytes in each")]
    TooMany {
        /// How many there would be.
        found: usize,
    },
    /// The number of tensors is kept in 31 bits.
    #[error("{found} tensors, expected at most 2147483647 in a split model")]
    TooManyTensors {
        /// How many there are.
        found: usize,
    },
}

/// Cuts a plan in parts. What fits in one is returned as it is under [`ShardStyle::Converter`].
///
/// # Errors
/// There are more parts than a file can number.
pub fn shard(plan: &Plan, config: &ShardConfig) -> Result<Vec<Plan>, ShardError> {
    let mut counts = match config.tensor_free_first {
        true => vec![0],
        false => Vec::new(),
    };
    let (mut n_tensors, mut n_bytes) = (0usize, 0u64);
    for tensor in &plan.tensors {
        let size_bytes = match config.style {
            ShardStyle::Converter => tensor.size_bytes,
            ShardStyle::SplitTool => tensor.size_bytes.next_multiple_of(DEFAULT_ALIGNMENT),
        };
        let is_full = config.max_tensors.is_some_and(|max| n_tensors >= max)
            || config
                .max_bytes
                .is_some_and(|max| n_bytes + size_bytes > max);
        if is_full && n_tensors > 0 {
            counts.push(n_tensors);
            (n_tensors, n_bytes) = (0, 0);
        }
        n_tensors += 1;
        n_bytes += size_bytes;
    }
    if n_tensors > 0 || counts.is_empty() {
        counts.push(n_tensors);
    }
    match (counts.len(), config.style) {
        (1, ShardStyle::Converter) => Ok(vec![plan.clone()]),
        _ => shard_by(plan, &counts, config.style),
    }
}

/// Cuts a plan in parts with that many tensors each, which together are all of them; one part gets
/// the keys of a split too.
///
/// # Errors
/// There are more parts or tensors than a file can number.
pub fn shard_by(plan: &Plan, counts: &[usize], style: ShardStyle) -> Result<Vec<Plan>, ShardError> {
    let found = counts.len();
    let n_parts = u16::try_from(found).map_err(|_| ShardError::TooMany { found })?;
    let found = plan.tensors.len();
    let n_tensors = i32::try_from(found).map_err(|_| ShardError::TooManyTensors { found })?;
    let mut rest = plan.tensors.as_slice();
    let mut parts = Vec::with_capacity(counts.len());
    for (no, &count) in (0..n_parts).zip(counts) {
        let (tensors, behind) = rest.split_at(count);
        rest = behind;
        let mut metadata = match no {
            0 => plan.metadata.clone(),
            _ => Metadata::new(),
        };
        // Without it, data in the later parts would lose an alignment that somebody asked for.
        if let Some(alignment) = plan.metadata.get(ALIGNMENT_KEY) {
            metadata.set(ALIGNMENT_KEY, alignment.clone());
        }
        metadata.set_last(SPLIT_NO, no);
        match style {
            ShardStyle::Converter => {
                metadata.set_last(SPLIT_COUNT, n_parts);
                metadata.set_last(SPLIT_TENSORS, n_tensors);
            }
            ShardStyle::SplitTool => {
                metadata.set_last(SPLIT_TENSORS, n_tensors);
                metadata.set_last(SPLIT_COUNT, n_parts);
            }
        }
        parts.push(Plan {
            version: plan.version,
            metadata,
            tensors: tensors.to_vec(),
        });
    }
    Ok(parts)
}

/// Whose parts they are, by the order of their keys.
pub fn shard_style(first: &Metadata) -> ShardStyle {
    let mut keys = first.iter().map(|(key, _)| key);
    match keys.find(|key| [SPLIT_COUNT, SPLIT_TENSORS].contains(key)) {
        Some(SPLIT_TENSORS) => ShardStyle::SplitTool,
        _ => ShardStyle::Converter,
    }
}

/// The names of parts, `m-00001-of-00003.gguf` and so on for `m.gguf`.
pub fn shard_paths(path: &Path, n_parts: usize) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    let part = |no| path.with_file_name(format!("{stem}{}", split::ending(no, n_parts as u32)));
    (0..n_parts as u32).map(part).collect()
}
