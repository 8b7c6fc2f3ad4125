//! Result of `specconv publish`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files of a folder compared with a repository of the Hub, and the commit that added them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "publish")]
pub struct PublishReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// `org/name`.
    pub repository: String,
    /// Branch of the commit.
    pub revision: String,
    /// True if the repository does not exist yet.
    pub is_new: bool,
    /// Files of the folder, in order of their names.
    pub files: Vec<PublishFile>,
    /// Names of files that only the repository has; they are kept.
    pub only_on_hub: Vec<String>,
    /// Bytes of the new and changed files.
    pub upload_bytes: u64,
    /// Commit hash; null under `--dry-run`, and if no file differs.
    pub commit: Option<String>,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishFile {
    /// Path in the folder and in the repository.
    pub name: String,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Comparison with the repository.
    pub change: FileChange,
}

/// Comparison of a local file with the repository's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileChange {
    /// The repository has no file of this name.
    New,
    /// The repository's file has another hash.
    Changed,
    /// The hashes are equal.
    Equal,
}
