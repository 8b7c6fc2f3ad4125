//! [`Recorder`]: compares the inputs and outputs of a command with a lock file, or records them in one.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use schemas::gguf::{self, Tensor};
use schemas::outfile::{OutputNames, Partial};
use schemas::report::{HashedInput, LockFile, LockedSource, LockedTool};

use crate::report_file::{self, ReportFile};
use crate::specconv::input::Inputs;

/// Use of a lock file by a command that writes models.
#[derive(Clone, Debug, Default)]
pub(in crate::specconv) enum Lock {
    /// The command has no lock file.
    #[default]
    None,
    /// The command writes a lock file.
    Record {
        path: PathBuf,
        /// The command with its arguments.
        command: Vec<String>,
        /// True if the file may exist.
        is_update: bool,
    },
    /// The command writes nothing unless its inputs and outputs are those of the lock file.
    Require(LockFile),
}

impl Lock {
    /// True if `specconv rebuild` runs the command.
    pub(in crate::specconv) fn is_rebuild(&self) -> bool {
        match self {
            Lock::None => false,
            Lock::Record { is_update, .. } => *is_update,
            Lock::Require(_) => true,
        }
    }

    /// Returns the commit at which a repository has to be read.
    pub(in crate::specconv) fn commit(&self, repository: &str, revision: &str) -> Option<&str> {
        let Lock::Require(lock) = self else {
            return None;
        };
        let mut sources = lock.sources.iter();
        let source = sources.find(|s| s.repository == repository && s.revision == revision);
        source.map(|source| source.commit.as_str())
    }
}

/// Error of a command whose inputs or outputs differ from its lock file: one sentence for each difference.
#[derive(Debug)]
pub(super) struct NotAsLocked(pub(super) Vec<String>);

impl fmt::Display for NotAsLocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for NotAsLocked {}

/// The lock file of a command that is about to write.
pub(in crate::specconv) struct Recorder<'a> {
    lock: &'a Lock,
    /// The lock file to write.
    file: Option<ReportFile>,
    /// Inputs of the command.
    found: LockFile,
}

impl<'a> Recorder<'a> {
    /// Claims the name of the lock file and hashes the inputs. They must be complete in the cache.
    ///
    /// # Errors
    /// An input differs from the lock file or cannot be read.
    pub(in crate::specconv) fn start<'t>(
        lock: &'a Lock,
        names: &mut OutputNames,
        inputs: &Inputs,
        tensors: impl Iterator<Item = &'t Tensor> + Clone,
    ) -> anyhow::Result<Option<Recorder<'a>>> {
        let (file, command) = match lock {
            Lock::None => return Ok(None),
            Lock::Record {
                path,
                command,
                is_update,
            } => {
                let file = match is_update {
                    true => ReportFile::update(path, names)?,
                    false => ReportFile::regular(path, names)?,
                };
                (Some(file), command)
            }
            Lock::Require(expected) => (None, &expected.command),
        };
        let found = LockFile {
            version: LockFile::VERSION,
            command: command.clone(),
            tool: this_tool(),
            sources: inputs.locked_sources(tensors)?,
            inputs: hashed_inputs(inputs, &|| false)?,
            outputs: Vec::new(),
        };
        if let Lock::Require(expected) = lock {
            as_locked(input_differences(expected, &found))?;
        }
        Ok(Some(Recorder { lock, file, found }))
    }

    /// Hashes the written files; each of `files` is a final path and the current path. Returns the lock file to
    /// publish with them.
    ///
    /// # Errors
    /// A file differs from the lock file or cannot be read.
    pub(in crate::specconv) fn stage(
        mut self,
        files: &[(&Path, &Path)],
        cancelled: &dyn Fn() -> bool,
    ) -> anyhow::Result<Vec<Partial>> {
        let outputs = files.iter();
        let outputs = outputs.map(|(path, at)| hashed(path.display().to_string(), at, cancelled));
        self.found.outputs = outputs.collect::<anyhow::Result<_>>()?;
        if let Lock::Require(expected) = self.lock {
            as_locked(output_differences(expected, &self.found))?;
        }
        let content = format!(
            "# Written by \"specconv lock\". \"specconv rebuild --locked\" makes the same files again.\n\n{}",
            toml::to_string(&self.found)?
        );
        let files = self.file.into_iter();
        report_file::stage(files.map(|file| (file, content.clone().into())).collect())
    }
}

fn as_locked(differences: Vec<String>) -> Result<(), NotAsLocked> {
    match differences.is_empty() {
        true => Ok(()),
        false => Err(NotAsLocked(differences)),
    }
}

fn this_tool() -> LockedTool {
    LockedTool {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("TOOL_COMMIT").to_owned(),
    }
}

/// Hashes the inputs, except weights on the Hub: the cache may hold only some of their bytes.
pub(in crate::specconv) fn hashed_inputs(
    inputs: &Inputs,
    cancelled: &dyn Fn() -> bool,
) -> anyhow::Result<Vec<HashedInput>> {
    let files = inputs.whole_files().into_iter();
    files
        .map(|(name, path)| hashed(name, &path, cancelled))
        .collect()
}

/// Hashes the file at `at`, under another name.
fn hashed(name: String, at: &Path, cancelled: &dyn Fn() -> bool) -> anyhow::Result<HashedInput> {
    Ok(HashedInput {
        size_bytes: fs::metadata(at).with_context(|| name.clone())?.len(),
        sha256: gguf::file_sha256(at, cancelled).with_context(|| name.clone())?,
        path: name,
    })
}

/// Compares the local inputs of a lock file with the files that exist.
///
/// # Errors
/// A file cannot be read.
pub(super) fn changed_inputs(lock: &LockFile) -> anyhow::Result<Vec<String>> {
    let mut changed = Vec::new();
    for expected in lock
        .inputs
        .iter()
        .filter(|i| !i.path.starts_with(hub::SCHEME))
    {
        let path = Path::new(&expected.path);
        match path.is_file() {
            true => {
                let found = hashed(expected.path.clone(), path, &|| false)?;
                changed.extend(difference("input", expected, &found));
            }
            false => changed.push(format!("input {}: does not exist", expected.path)),
        }
    }
    Ok(changed)
}

/// Lists the differences of a lock file from an earlier one.
pub(super) fn differences(expected: &LockFile, found: &LockFile) -> Vec<String> {
    let inputs = input_differences(expected, found);
    let outputs = output_differences(expected, found);
    inputs.into_iter().chain(outputs).collect()
}

fn input_differences(expected: &LockFile, found: &LockFile) -> Vec<String> {
    let mut differences = Vec::new();
    let sources = expected.sources.iter();
    for source in sources {
        let url = format!("{}{}", hub::SCHEME, source.repository);
        let mut others = found.sources.iter();
        match others.find(|other| other.repository == source.repository) {
            None => differences.push(format!("source {url}: was not read")),
            Some(other) if other.commit != source.commit => differences.push(format!(
                "source {url}: commit {}, expected {}",
                other.commit, source.commit
            )),
            Some(other) => differences.extend(range_differences(&url, source, other)),
        }
    }
    differences.extend(file_differences("input", &expected.inputs, &found.inputs));
    differences
}

/// Compares the weights that were read of one commit.
fn range_differences(url: &str, expected: &LockedSource, found: &LockedSource) -> Vec<String> {
    let mut differences = Vec::new();
    for weights in &expected.weights {
        let subject = format!("input {url}/{}", weights.file);
        let mut others = found.weights.iter();
        match others.find(|other| other.file == weights.file) {
            None => differences.push(format!("{subject}: was not read")),
            Some(other) if other.ranges != weights.ranges => differences.push(format!(
                "{subject}: bytes {} were read, expected {}",
                other.ranges.join(", "),
                weights.ranges.join(", ")
            )),
            Some(other) if other.sha256 != weights.sha256 => differences.push(format!(
                "{subject}: sha256 {} of the bytes that were read, expected {}",
                other.sha256, weights.sha256
            )),
            Some(_) => {}
        }
    }
    differences
}

fn output_differences(expected: &LockFile, found: &LockFile) -> Vec<String> {
    let mut differences = file_differences("output", &expected.outputs, &found.outputs);
    let (then, now) = (&expected.tool, &found.tool);
    if then != now && !differences.is_empty() {
        differences.push(format!(
            "tool: specconv {} ({}), the lock file was written by {} ({})",
            now.version, now.commit, then.version, then.commit
        ));
    }
    differences
}

fn file_differences(kind: &str, expected: &[HashedInput], found: &[HashedInput]) -> Vec<String> {
    let named = |files: &'_ [HashedInput], path: &str| -> Option<HashedInput> {
        files.iter().find(|file| file.path == path).cloned()
    };
    let changed = expected
        .iter()
        .filter_map(|file| match named(found, &file.path) {
            Some(other) => difference(kind, file, &other),
            None => Some(format!("{kind} {}: is missing", file.path)),
        });
    let added = found
        .iter()
        .filter(|file| named(expected, &file.path).is_none());
    let added = added.map(|file| format!("{kind} {}: is not in the lock file", file.path));
    changed.chain(added).collect()
}

fn difference(kind: &str, expected: &HashedInput, found: &HashedInput) -> Option<String> {
    (found.sha256 != expected.sha256).then(|| {
        format!(
            "{kind} {}: sha256 {} ({} bytes), expected {} ({} bytes)",
            found.path, found.sha256, found.size_bytes, expected.sha256, expected.size_bytes
        )
    })
}
