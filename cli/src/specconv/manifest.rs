//! What a writing command leaves beside its files: their hashes, and what they were made of.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use schemas::gguf::{self, Algorithm};
use schemas::report::{HashedInput, ManifestReport, SCHEMA_VERSION};

use super::hash::Hashed;
use super::input::Inputs;
use crate::output::PendingFile;

/// Manifests of files that are not written yet, each as lines or as JSON.
pub(super) struct Manifests {
    lines: Vec<PendingFile>,
    json: Vec<PendingFile>,
}

impl Manifests {
    /// Starts them; those whose names end in `.json` are JSON.
    pub(super) fn start(
        paths: &[PathBuf],
        outputs: &[&Path],
        inputs: &Inputs,
    ) -> anyhow::Result<Manifests> {
        let mut manifests = Manifests {
            lines: Vec::new(),
            json: Vec::new(),
        };
        let folder = |path: &Path| match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => fs::canonicalize(folder).ok(),
            _ => fs::canonicalize(".").ok(),
        };
        let input_paths: Vec<&Path> = inputs.files().iter().map(PathBuf::as_path).collect();
        for path in paths {
            let is_same = |output: &&Path| {
                output.file_name() == path.file_name() && folder(output) == folder(path)
            };
            ensure!(
                !outputs.iter().any(is_same),
                "{}: is a model that is to be written, expected another name for its manifest",
                path.display()
            );
            let pending = PendingFile::new(path, &input_paths)?;
            match path.extension() == Some(OsStr::new("json")) {
                true => manifests.json.push(pending),
                false => manifests.lines.push(pending),
            }
        }
        Ok(manifests)
    }

    /// Hashes what was written, and for JSON what it was made of.
    pub(super) fn finish(
        self,
        outputs: &[&Path],
        inputs: &Inputs,
        options: &str,
        threads: usize,
    ) -> anyhow::Result<()> {
        if self.lines.is_empty() && self.json.is_empty() {
            return Ok(());
        }
        let algorithm = Algorithm::Sha256;
        let files = outputs
            .iter()
            .map(|path| Hashed::new(path, algorithm, threads));
        let files = files.collect::<anyhow::Result<Vec<_>>>()?;
        let lines: String = files
            .iter()
            .flat_map(|file| file.lines(algorithm))
            .flat_map(|line| [line, "\n".to_owned()])
            .collect();
        for pending in self.lines {
            pending.finish(&lines)?;
        }
        if self.json.is_empty() {
            return Ok(());
        }
        let report = ManifestReport {
            schema_version: SCHEMA_VERSION,
            made_by: format!("specconv {}", env!("CARGO_PKG_VERSION")),
            options: options.to_owned(),
            sources: inputs.sources(),
            inputs: hashed_inputs(inputs)?,
            algorithm: algorithm.name().to_owned(),
            files: files
                .iter()
                .map(Hashed::report)
                .collect::<anyhow::Result<_>>()?,
        };
        let mut text = serde_json::to_string_pretty(&report)?;
        text.push('\n');
        for pending in self.json {
            pending.finish(&text)?;
        }
        Ok(())
    }
}

/// What was read, but for weights on the Hub, of which the cache may have some bytes only: the
/// commit stands for these.
fn hashed_inputs(inputs: &Inputs) -> anyhow::Result<Vec<HashedInput>> {
    let is_whole = |path: &&PathBuf| {
        let is_weights = path.extension() == Some(OsStr::new("safetensors"));
        path.is_file() && (!is_weights || inputs.data().contains(path))
    };
    let mut paths: Vec<&PathBuf> = inputs.files().iter().chain(inputs.data()).collect();
    paths.retain(is_whole);
    paths.sort();
    paths.dedup();
    let hashed = paths.into_iter().map(|path| {
        let name = path.display().to_string();
        Ok(HashedInput {
            size_bytes: fs::metadata(path).with_context(|| name.clone())?.len(),
            sha256: gguf::file_sha256(path).with_context(|| name.clone())?,
            path: name,
        })
    });
    hashed.collect()
}
