//! Work that several machines share: [`divide`] cuts the tensors of files into shards, [`part`] is the file
//! that one shard writes, and [`join`] makes the original files from the parts of all shards.
//!
//! A part is a GGUF file, so it is written, resumed and read like any other. The joined file has the bytes of
//! one run, whatever the number of shards. [`check_ranges`] detects damaged parts, and [`fingerprint`] inputs that
//! differ from those of the plan.

mod divide;
mod hash;
mod join;
mod part;

pub use divide::{Part, Slice, divide};
pub use hash::{RangeError, check_ranges, fingerprint, hash};
pub use join::{JoinError, Joined, PartFile, TensorShape, join};
pub use part::{PADDING, part};
