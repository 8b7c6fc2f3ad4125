//! Files other than models that commands write: reports, manifests, lookup caches.

use std::env;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use schemas::outfile::{self, Destination, Existing, OutputNames, Partial};

use crate::{interrupt, output};

/// Flag of every command that writes files.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OverwriteArgs {
    /// Replace output files that exist
    ///
    /// Without it, a command that would replace a file fails before it starts
    #[arg(long)]
    overwrite: bool,
}

impl OverwriteArgs {
    pub(crate) fn existing(self) -> Existing {
        match self.overwrite {
            true => Existing::Replace,
            false => Existing::Refuse,
        }
    }
}

/// A file that is written once the command has its result. Until then only the name is reserved, so an
/// interrupted command leaves nothing.
pub(crate) struct ReportFile {
    destination: Destination,
}

impl ReportFile {
    /// Claims the destination of a report: a file, or a stream such as standard output (`-`).
    ///
    /// # Errors
    /// `names` rejects the name, or the folder is not writable.
    pub(crate) fn new(path: &Path, names: &mut OutputNames) -> anyhow::Result<ReportFile> {
        // Steps of a job on GitHub share this file.
        if env::var_os("GITHUB_STEP_SUMMARY").is_some_and(|summary| summary == path) {
            let destination = Destination::Stream(path.to_path_buf());
            return Ok(ReportFile { destination });
        }
        ReportFile::check_folder(names.claim_report(path)?)
    }

    /// Claims the name of a file that the command updates: it must not be a stream, and may exist.
    ///
    /// # Errors
    /// `names` rejects the name, or the folder is not writable.
    pub(crate) fn update(path: &Path, names: &mut OutputNames) -> anyhow::Result<ReportFile> {
        names.claim_update(path)?;
        ReportFile::check_folder(Destination::File(path.to_path_buf()))
    }

    /// Claims the name of a file that must not be a stream.
    ///
    /// # Errors
    /// `names` rejects the name, or the folder is not writable.
    pub(crate) fn regular(path: &Path, names: &mut OutputNames) -> anyhow::Result<ReportFile> {
        names.claim_file(path)?;
        ReportFile::check_folder(Destination::File(path.to_path_buf()))
    }

    /// Checks that the folder is writable, so that an error is reported before the work, not after it.
    fn check_folder(destination: Destination) -> anyhow::Result<ReportFile> {
        if let Destination::File(path) = &destination {
            drop(Partial::create_one(path)?);
        }
        Ok(ReportFile { destination })
    }
}

/// Writes all reports, or none.
///
/// # Errors
/// One of them cannot be written.
pub(crate) fn publish(reports: Vec<(ReportFile, Vec<u8>)>) -> anyhow::Result<()> {
    let destinations = reports.iter().map(|(report, _)| &report.destination);
    let written: Vec<PathBuf> = destinations
        .filter_map(|destination| match destination {
            Destination::File(path) => Some(path.clone()),
            Destination::Stdout | Destination::Stream(_) => None,
        })
        .collect();
    interrupt::while_writing(|_| Ok(outfile::publish(stage(reports)?)?))?;
    for path in written {
        output::status(&format_args!("wrote {}", path.display()));
    }
    Ok(())
}

/// Writes the reports that are files under hidden names, to be published together with others, then the
/// reports that are streams.
///
/// # Errors
/// One of them cannot be written.
pub(crate) fn stage(reports: Vec<(ReportFile, Vec<u8>)>) -> anyhow::Result<Vec<Partial>> {
    let mut partials = Vec::new();
    for (report, content) in &reports {
        if let Destination::File(path) = &report.destination {
            let partial = Partial::create_one(path)?;
            let written = partial.file().write_all(content);
            written.with_context(|| path.display().to_string())?;
            partials.push(partial);
        }
    }
    for (report, content) in &reports {
        match &report.destination {
            Destination::File(_) => {}
            Destination::Stdout => output::raw(content)?,
            Destination::Stream(path) => {
                let opened = File::options().append(true).create(true).open(path);
                let written = opened.and_then(|mut stream| stream.write_all(content));
                written.with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(partials)
}
