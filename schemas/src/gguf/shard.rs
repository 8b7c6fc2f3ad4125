//! Splits a plan into shards; [`open`](super::open) reads them as one model again.
//!
//! Two llama.cpp tools write shards. They count bytes differently and order keys differently, see
//! [`ShardStyle`].

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::plan::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Plan};
use super::split::{self, SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS};

/// The tool whose shards are reproduced byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardStyle {
    /// `convert_hf_to_gguf.py`: the size of a shard is that of its tensors, and a model that fits
    /// in one file is not split. `llama-quantize` writes the same keys.
    Converter,
    /// `llama-gguf-split`: the size of a shard includes the padding after its tensors, and a single
    /// shard is numbered, too.
    SplitTool,
}

/// Limits of a shard. A shard has at least one tensor, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Maximum bytes of tensors in a shard; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// Maximum number of tensors in a shard; `None` for no limit.
    pub max_tensors: Option<usize>,
    /// True if the first shard has the keys and no tensors.
    pub tensor_free_first: bool,
    /// The tool whose shards are reproduced.
    pub style: ShardStyle,
}

/// Error of splitting a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// The number of shards does not fit in 16 bits.
    #[error("{found} shards, expected at most 65535; allow more tensors or bytes per shard")]
    TooMany {
        /// Number of shards.
        found: usize,
    },
    /// The number of tensors does not fit in 31 bits.
    #[error("{found} tensors, expected at most 2147483647 in a split model")]
    TooManyTensors {
        /// Number of tensors.
        found: usize,
    },
}

/// Splits a plan into shards. With [`ShardStyle::Converter`], a plan that fits in one file is
/// returned unmodified.
///
/// # Errors
/// There are more shards or tensors than a file can number.
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

/// Splits a plan into shards with these numbers of tensors, which must sum to all tensors. A single
/// shard gets the keys of a split, too.
///
/// # Errors
/// There are more shards or tensors than a file can number.
pub fn shard_by(plan: &Plan, counts: &[usize], style: ShardStyle) -> Result<Vec<Plan>, ShardError> {
    let found = counts.len();
    let n_parts = u16::try_from(found).map_err(|_| ShardError::TooMany { found })?;
    let found = plan.tensors.len();
    let n_tensors = i32::try_from(found).map_err(|_| ShardError::TooManyTensors { found })?;
    let mut rest = plan.tensors.as_slice();
    let mut parts = Vec::with_capacity(counts.len());
    for (no, &count) in (0..n_parts).zip(counts) {
        let (tensors, after) = rest.split_at(count);
        rest = after;
        let mut metadata = match no {
            0 => plan.metadata.clone(),
            _ => Metadata::new(),
        };
        // Without the key, data of later shards would have the default alignment.
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

/// Returns the tool that wrote the shards, from the order of their keys.
pub fn shard_style(first: &Metadata) -> ShardStyle {
    let mut keys = first.iter().map(|(key, _)| key);
    match keys.find(|key| [SPLIT_COUNT, SPLIT_TENSORS].contains(key)) {
        Some(SPLIT_TENSORS) => ShardStyle::SplitTool,
        _ => ShardStyle::Converter,
    }
}

/// Returns the paths of shards: `m-00001-of-00003.gguf` and so on for `m.gguf`.
pub fn shard_paths(path: &Path, n_parts: usize) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    let part = |no| path.with_file_name(format!("{stem}{}", split::ending(no, n_parts as u32)));
    (0..n_parts as u32).map(part).collect()
}
