//! Plans of work that several machines share, the manifests of their parts, and the results of `specconv run` and
//! `specconv finish`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A command that is divided among shards, as `specconv plan` writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "work-plan")]
pub struct WorkPlan {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Name and version of the program. All shards need the same.
    pub program: String,
    /// Name of the planned command.
    pub kind: WorkKind,
    /// Arguments of the program, from the word `plan` on.
    pub command: Vec<String>,
    /// Folder in which the command was planned. Relative paths start in the current folder, which is this one on
    /// machines that share a file system.
    pub folder: String,
    /// Options besides the inputs that determine the result.
    pub options: String,
    /// Files that are read.
    pub inputs: Vec<WorkInput>,
    /// Repositories on the Hub that are read.
    pub sources: Vec<WorkSource>,
    /// Model files that are written; empty for measurements.
    pub outputs: Vec<WorkOutput>,
    /// Form of the parts of model files.
    pub parts: WorkParts,
    /// Work of each shard, in order.
    pub shards: Vec<WorkShard>,
}

/// Form of the parts that shards write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkParts {
    /// Each shard writes files of its own.
    Separate,
    /// All shards write their rows into one file for each output, at the offsets of the plan.
    Shared,
}

/// A command that can be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkKind {
    /// `specconv convert`.
    Convert,
    /// `specconv quantize`.
    Quantize,
    /// `specrun imatrix`.
    Imatrix,
    /// `specrun kld`.
    Kld,
    /// `specrun verify`.
    Verify,
}

impl WorkKind {
    /// Returns the name of the command.
    pub fn name(self) -> &'static str {
        match self {
            WorkKind::Convert => "convert",
            WorkKind::Quantize => "quantize",
            WorkKind::Imatrix => "imatrix",
            WorkKind::Kld => "kld",
            WorkKind::Verify => "verify",
        }
    }
}

/// A file that a plan reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkInput {
    /// Path as in the command.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// XXH3 in hexadecimal: of all bytes up to 16 MiB, else of 256 blocks of 4 KiB at equal distances.
    pub sampled_xxh3: String,
    /// Modification time in nanoseconds since 1970, as text; null if it is not compared.
    pub modified_ns: Option<String>,
}

/// A commit on the Hub that a plan reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkSource {
    /// Name of the repository, `org/name`.
    pub repository: String,
    /// Hash of the commit.
    pub commit: String,
}

/// A model file that a plan writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkOutput {
    /// Path as in the command.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// XXH3 of the header in hexadecimal: keys, and names, shapes, types and offsets of the tensors.
    pub header_xxh3: String,
    /// Tensors in file order.
    pub tensors: Vec<WorkTensor>,
}

/// A tensor of a model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkTensor {
    /// Full name.
    pub name: String,
    /// Name of the element type in ggml.
    pub dtype: String,
    /// Elements per dimension, the contiguous one first.
    pub shape: Vec<u64>,
    /// Offset of the data in the file, in bytes.
    pub offset: u64,
    /// Bytes of data.
    pub size_bytes: u64,
}

/// Work of one shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkShard {
    /// Number of the shard, from 0.
    pub shard: u32,
    /// Files that the shard writes; empty if there is less work than shards.
    pub files: Vec<WorkFile>,
}

/// A file that a shard writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkFile {
    /// Name in the folder of parts. Shared files are hidden, and a part of the plan's SHA-256 follows their name.
    pub name: String,
    /// Content of the file; of a shared one, the content that the shard writes.
    pub content: WorkContent,
}

/// Content of a file of a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum WorkContent {
    /// Rows of tensors of a model file.
    Tensors {
        /// Index in the plan's outputs.
        output: u32,
        /// The rows, in the order of the tensors.
        slices: Vec<WorkSlice>,
    },
    /// Chunks of a text, counted from the first one that is evaluated.
    Chunks {
        /// First chunk.
        first: u64,
        /// Number of chunks.
        count: u64,
    },
    /// Checks of a verification: `target`, or the name of a speculator or chain.
    Checks {
        /// Index of the checks, from 0 for the target.
        unit: u32,
        /// Name of the speculator.
        name: String,
    },
}

/// Rows of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkSlice {
    /// Index of the tensor in the output.
    pub tensor: u32,
    /// First row.
    pub first_row: u64,
    /// Number of rows.
    pub n_rows: u64,
    /// Offset of the rows in the output, in bytes.
    pub offset: u64,
    /// Bytes of the rows.
    pub size_bytes: u64,
}

/// Manifest of the part of one shard. A part is complete when its manifest exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "work-part")]
pub struct PartManifest {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// SHA-256 of the plan.
    pub plan_sha256: String,
    /// Number of the shard, from 0.
    pub shard: u32,
    /// The files, in the order of the plan.
    pub files: Vec<PartFile>,
}

/// A file of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartFile {
    /// Name in the folder of parts.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Ranges that the shard wrote, in file order. The rest of a separate file is zero.
    pub ranges: Vec<PartRange>,
}

/// Bytes that a shard wrote: the header, or rows of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartRange {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub size_bytes: u64,
    /// XXH3 in hexadecimal.
    pub xxh3: String,
}

/// Result of `specconv run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "run")]
pub struct RunReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the plan.
    pub plan: String,
    /// Number of the shard, from 0.
    pub shard: u32,
    /// True if the part was already right, so that nothing was written.
    pub kept: bool,
    /// Bytes of the part, without padding.
    pub size_bytes: u64,
    /// Bytes of tensor data that were kept from an interrupted run.
    pub resumed_bytes: u64,
    /// Time from start to the finished part, in milliseconds.
    pub elapsed_ms: u64,
}

/// Result of `specconv finish` for model files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "finish")]
pub struct FinishReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the plan.
    pub plan: String,
    /// SHA-256 of the plan.
    pub plan_sha256: String,
    /// The files.
    pub outputs: Vec<FinishedFile>,
    /// Bytes of these that the shards wrote as whole files, which were renamed.
    pub renamed_bytes: u64,
    /// Bytes of tensor data that the kernel copied from the parts.
    pub kernel_copied_bytes: u64,
    /// Bytes of these whose blocks are shared with the parts: they took neither space nor time.
    pub shared_bytes: u64,
    /// True if an earlier run had already written the files.
    pub kept: bool,
    /// Time from start to the finished files, in milliseconds.
    pub elapsed_ms: u64,
}

/// A file that `specconv finish` wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishedFile {
    /// Path as in the command.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Modification time in nanoseconds since 1970, as text.
    pub modified_ns: String,
}
