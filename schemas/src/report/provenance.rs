//! Origin of a report: program, date, machine and inputs.

use std::fmt::{self, Display};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Program that made a report, date, machine, and hashes of the inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Version of the program.
    pub tool_version: String,
    /// Commit that the program was built from; `unknown` for a build outside a repository.
    pub tool_commit: String,
    /// Date and time in UTC, as in RFC 3339.
    pub date: String,
    /// The CPU.
    pub cpu: CpuModel,
    /// Model files, the target's first; each shard of a split model has its own entry.
    pub files: Vec<InputFile>,
    /// SHA-256 of the prompts: of the id, the text and the number of tokens to generate for each
    /// prompt, in file order, each preceded by its length as little-endian u64. Null for a command without
    /// prompts.
    pub prompts_sha256: Option<String>,
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
    /// Quantization mix by `general.file_type`; null if the key is absent.
    pub file_type: Option<String>,
}

/// The model of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    /// Name as the system reports it; `unknown` if it reports none.
    pub name: String,
    /// Family number of an x86 CPU; null for other CPUs.
    pub family: Option<u32>,
    /// Model number of an x86 CPU; null for other CPUs.
    pub model: Option<u32>,
}

impl Display for CpuModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match (self.family, self.model) {
            (Some(family), Some(model)) => write!(f, " (family {family}, model {model})"),
            _ => Ok(()),
        }
    }
}
