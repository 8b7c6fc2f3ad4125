//! Lock files, which record the inputs and outputs of a command, and the result of `specconv rebuild`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HashedInput, Verdict};

/// Inputs and outputs of a command that wrote models; `specconv lock` writes it as TOML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "lock")]
pub struct LockFile {
    /// Version of the format: 1.
    pub version: u32,
    /// Command of specconv with its arguments, without those that do not affect the files.
    pub command: Vec<String>,
    /// The program that wrote the files.
    pub tool: LockedTool,
    /// Hub repositories that were read.
    #[serde(default, rename = "source", skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<LockedSource>,
    /// Files that were read whole, with paths as given on the command line: weights, descriptions of models,
    /// importance matrices, recipes. A file of a Hub repository begins with `hf://`.
    #[serde(default, rename = "input", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<HashedInput>,
    /// Files that were written.
    #[serde(default, rename = "output")]
    pub outputs: Vec<HashedInput>,
}

impl LockFile {
    /// The version of the format.
    pub const VERSION: u32 = 1;
}

/// The program that wrote the files of a lock file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockedTool {
    /// Version of the program.
    pub version: String,
    /// Commit that the program was built from; `unknown` for a build outside a repository.
    pub commit: String,
}

/// A Hub repository in a lock file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockedSource {
    /// `org/name`.
    pub repository: String,
    /// Requested revision.
    pub revision: String,
    /// Commit hash of the revision.
    pub commit: String,
    /// Byte ranges of weights that were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<LockedRanges>,
}

/// Byte ranges of a file on the Hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockedRanges {
    /// Path in the repository.
    pub file: String,
    /// First and last byte of each range, as in `0-1023`, in ascending order.
    pub ranges: Vec<String>,
    /// SHA-256 of the bytes of all ranges, in hexadecimal.
    pub sha256: String,
}

/// Result of `specconv rebuild`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "rebuild")]
pub struct RebuildReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the lock file.
    pub lock: String,
    /// True with `--locked`: nothing is written if something differs. Otherwise the lock file is updated.
    pub locked: bool,
    /// The command that was run.
    pub command: Vec<String>,
    /// Inputs, commits and outputs that differ from the lock file, one sentence each.
    pub differences: Vec<String>,
    /// Files that were written; empty if none were.
    pub outputs: Vec<HashedInput>,
    /// Fail if something differs with `--locked`.
    pub verdict: Verdict,
}
