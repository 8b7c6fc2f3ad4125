//! Origin of a report: program, date, machine and inputs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The program that made a report, the date, the machine, and the inputs by their hashes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Version of the program.
    pub tool_version: String,
    /// Commit that the program was built from; `unknown` for a build outside of a repository.
    pub tool_commit: String,
    /// Date and time in UTC, as in RFC 3339.
    pub date: String,
    /// The CPU.
    pub cpu: CpuModel,
    /// The model files, the target's first, each part of a split model by itself.
    pub files: Vec<InputFile>,
    /// SHA-256 of the set of prompts: over the id, the text and the number of tokens to write of each
    /// prompt, in file order, each preceded by its length as little-endian u64.
    pub prompts_sha256: String,
}

/// A model file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputFile {
    /// Name without folders.
    pub name: String,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// SHA-256 of the whole file, in hexadecimal.
    pub sha256: String,
    /// Mix of types by `general.file_type`; null where the key is absent.
    pub file_type: Option<String>,
}

/// The model of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    /// Name as the system reports it; `unknown` where it reports none.
    pub name: String,
    /// Family number of an x86 CPU.
    pub family: Option<u32>,
    /// Model number of an x86 CPU.
    pub model: Option<u32>,
}
