//! Manifests of written files: their hashes and their inputs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use schemas::outfile::{OutputNames, Partial};
use schemas::report::{ManifestReport, SCHEMA_VERSION};

use super::hash::{Hashed, Hashing};
use super::input::Inputs;
use super::lock::hashed_inputs;
use crate::report_file::{self, ReportFile};

/// Manifests of files that are not yet written.
pub(super) struct Manifests {
    files: Vec<(ReportFile, Format)>,
}

enum Format {
    /// The lines of `specconv hash`.
    Lines,
    /// A [`ManifestReport`].
    Json,
}

impl Manifests {
    /// Claims the names; a name that ends in `.json` selects JSON.
    pub(super) fn start(paths: &[PathBuf], names: &mut OutputNames) -> anyhow::Result<Manifests> {
        let start = |path: &PathBuf| {
            let is_json = path.extension() == Some(OsStr::new("json"));
            let format = if is_json { Format::Json } else { Format::Lines };
            Ok((ReportFile::new(path, names)?, format))
        };
        Ok(Manifests {
            files: paths.iter().map(start).collect::<anyhow::Result<_>>()?,
        })
    }

    /// Hashes the written files, and for JSON also the inputs. Each of `files` is a final path and the
    /// current path.
    pub(super) fn stage(
        self,
        files: Vec<(&Path, &Path)>,
        inputs: &Inputs,
        options: &str,
        hashing: &Hashing<'_>,
    ) -> anyhow::Result<Vec<Partial>> {
        if self.files.is_empty() {
            return Ok(Vec::new());
        }
        let files = files
            .iter()
            .map(|(path, at)| Hashed::new(path, at, hashing));
        let files = files.collect::<anyhow::Result<Vec<_>>>()?;
        let lines = files.iter().flat_map(|file| file.lines(hashing.algorithm));
        let lines: String = lines.flat_map(|line| [line, "\n".to_owned()]).collect();
        let json = || {
            let report = ManifestReport {
                schema_version: SCHEMA_VERSION,
                made_by: format!("specconv {}", env!("CARGO_PKG_VERSION")),
                options: options.to_owned(),
                sources: inputs.sources(),
                inputs: hashed_inputs(inputs, hashing.cancelled)?,
                algorithm: hashing.algorithm.name().to_owned(),
                files: files
                    .iter()
                    .map(|file| file.report(hashing.cancelled))
                    .collect::<anyhow::Result<_>>()?,
            };
            anyhow::Ok(serde_json::to_string_pretty(&report)? + "\n")
        };
        let has_json = self
            .files
            .iter()
            .any(|(_, format)| matches!(format, Format::Json));
        let json = has_json.then(json).transpose()?.unwrap_or_default();
        let contents = self.files.into_iter().map(|(file, format)| match format {
            Format::Lines => (file, lines.clone().into_bytes()),
            Format::Json => (file, json.clone().into_bytes()),
        });
        report_file::stage(contents.collect())
    }
}
