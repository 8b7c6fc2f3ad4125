//! The GGUF container, versions 2 and 3, little endian.
//!
//! [`open`] reads a file as a [`Plan`]; [`write()`] writes plans. This module knows neither
//! architectures nor reports. docs/format.md describes the format.

mod bytes;
mod dtype;
mod hash;
mod map;
mod metadata;
mod plan;
mod read;
mod reserve;
mod shard;
mod split;
mod stamp;
mod strings;
mod value;
mod write;

pub use bytes::{FileRange, LocalFile, ReadAt};
pub use dtype::{DType, Layout};
pub use hash::{
    Algorithm, HashError, Hashes, ManifestEntry, file_sha256, hashes, manifest_line, parse_manifest,
};
pub use map::{Map, Mapped, exit_on_lost_bytes};
pub use metadata::{KeyError, Metadata};
pub use plan::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Extent, FilePosition, MAX_NAME_LEN, Origin, Owned, Plan,
    PlanError, RowError, SizeError, Source, SourceError, Tensor, logical_shape, size_bytes,
};
pub use read::{Malformed, ReadError, ReadErrorKind, check, open, open_one};
pub use reserve::{MAX_RESERVED_BYTES, RESERVED, reserve};
pub use shard::{ShardConfig, ShardError, ShardStyle, shard, shard_by, shard_paths, shard_style};
pub use split::{SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, SplitError, part_paths};
pub use strings::{Iter as StringsIter, Strings};
pub use value::{Array, Value, ValueType};
pub use write::{
    Editor, FileLayout, HashedRange, Output, Resume, Staged, WriteConfig, WriteError, WriteReport,
    layout, layouts, stage, stage_shared, write,
};
