//! The origin of a report: program, date, machine and inputs.

use std::fs;
use std::path::Path;

use anyhow::Context;
use chrono::{SecondsFormat, Utc};
use schemas::gguf;
use schemas::report::{InputFile, Provenance};
use verify::cpu_model::cpu_model;
use verify::prompts::{self, Prompt};

use crate::specconv::file_type;

/// Returns the origin of a report on the given model files and prompts. Reads the files once more.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn provenance<'a>(
    models: impl IntoIterator<Item = &'a Path>,
    prompts: Option<&[Prompt]>,
) -> anyhow::Result<Provenance> {
    let mut files = Vec::new();
    for model in models {
        let parts = gguf::part_paths(model)?;
        files.extend(parts.iter().map(|part| input_file(part)));
    }
    Ok(Provenance {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        tool_commit: env!("TOOL_COMMIT").to_owned(),
        date: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
        cpu: cpu_model(),
        files: files.into_iter().collect::<anyhow::Result<_>>()?,
        prompts_sha256: prompts.map(prompts::sha256),
    })
}

fn input_file(path: &Path) -> anyhow::Result<InputFile> {
    let shown = || path.display().to_string();
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(InputFile {
        name: name.to_string_lossy().into_owned(),
        size_bytes: fs::metadata(path).with_context(shown)?.len(),
        sha256: gguf::file_sha256(path, &|| false).with_context(shown)?,
        file_type: file_type::of(&gguf::open_one(path)?.metadata),
    })
}
