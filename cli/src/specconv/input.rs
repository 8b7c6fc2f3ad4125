//! Inputs of commands: GGUF files and checkpoints, in folders or on the Hub.

use std::collections::HashSet;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::Context;
use convert::{ConvertConfig, MtpMode, OutType};
use schemas::gguf::{self, Plan, Tensor};
use schemas::outfile::{Existing, OutputNames};
use schemas::report::{LockedSource, SourceReport, WorkSource};

use super::lock::Lock;
use super::remote::{self, RemoteCheckpoint};
use super::write::WriteArgs;
use crate::output;

/// Folder of a checkpoint with further chat templates.
const CHAT_TEMPLATES: &str = "additional_chat_templates";

/// The files that a command reads. Its outputs must not replace them.
#[derive(Default)]
pub(super) struct Inputs {
    files: Vec<PathBuf>,
    /// Files that supply tensor data; the content of the others ends up in the header.
    data: Vec<PathBuf>,
    /// Checkpoints on the Hub.
    remote: Vec<RemoteCheckpoint>,
    /// Notes that were printed: a checkpoint that is opened for several types has them only once.
    printed: HashSet<String>,
    /// Lock file of the command, which may name the commits to read.
    lock: Lock,
}

impl Inputs {
    /// Starts with the flags of a command that writes models.
    pub(super) fn new(args: &WriteArgs) -> Inputs {
        Inputs {
            lock: args.lock.clone(),
            ..Inputs::default()
        }
    }

    /// Opens a GGUF file, or plans the conversion of a checkpoint in a folder or on the Hub.
    pub(super) fn open(
        &mut self,
        path: &Path,
        outtype: OutType,
        mtp: MtpMode,
    ) -> anyhow::Result<Plan> {
        if path.is_dir() || remote::is_remote(path) {
            let config = ConvertConfig {
                checkpoint: path.to_path_buf(),
                remote: None,
                outtype,
                mtp,
                clusters: true,
                tokenizer_from: None,
                target: None,
            };
            return self.open_checkpoint(&config).map(|c| c.plan);
        }
        let plan = gguf::open(path)?;
        let parts = gguf::part_paths(path)?;
        self.data.extend_from_slice(&parts);
        self.files.extend(parts);
        Ok(plan)
    }

    /// Plans the conversion of a checkpoint, in a folder or on the Hub, and prints its notes.
    pub(super) fn open_checkpoint(
        &mut self,
        config: &ConvertConfig,
    ) -> anyhow::Result<convert::Converted> {
        let mut local = config.clone();
        if remote::is_remote(&config.checkpoint) {
            let remote = RemoteCheckpoint::open(&config.checkpoint, &self.lock)?;
            remote.fetch_headers()?;
            local.checkpoint = remote.folder();
            local.remote = Some(remote.remote());
            self.remote.push(remote);
        }
        for folder in local.tokenizer_from.iter_mut().chain(&mut local.target) {
            if remote::is_remote(folder) {
                let remote = RemoteCheckpoint::open(folder, &self.lock)?;
                *folder = remote.folder();
                self.remote.push(remote);
            }
        }
        let converted = convert::plan(&local)?;
        for note in &converted.notes {
            if self.printed.insert(note.to_string()) {
                output::note(note);
            }
        }
        for folder in iter::once(&local.checkpoint)
            .chain(&local.tokenizer_from)
            .chain(&local.target)
        {
            let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
            let templates = fs::read_dir(folder.join(CHAT_TEMPLATES));
            let files = files.chain(templates.into_iter().flatten());
            let mut files: Vec<_> = files.filter_map(|entry| Some(entry.ok()?.path())).collect();
            files.sort();
            let has = |file: &&PathBuf, ext| file.extension().is_some_and(|e| e == ext);
            // From the other folders only the tokenizer and the configuration are read, and a checkpoint
            // on the Hub is identified by its commit.
            let weights = files.iter().filter(|file| has(file, "safetensors"));
            if folder == &config.checkpoint {
                self.data.extend(weights.cloned());
            }
            let others = files.iter().filter(|file| !has(file, "gguf"));
            self.files.extend(others.cloned());
        }
        Ok(converted)
    }

    /// Downloads the data of tensors that are on the Hub.
    pub(super) fn prefetch<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor> + Clone,
    ) -> anyhow::Result<()> {
        let mut checkpoints = self.remote.iter();
        checkpoints.try_for_each(|checkpoint| checkpoint.prefetch(tensors.clone()))
    }

    /// Returns the files that supply tensor data.
    pub(super) fn data(&self) -> &[PathBuf] {
        &self.data
    }

    /// Returns the names and paths of the files whose content decides about the outputs, by name: all that are
    /// read but weights on the Hub. The name of a file on the Hub begins with `hf://`.
    pub(super) fn whole_files(&self) -> Vec<(String, PathBuf)> {
        let shown = |path: &PathBuf| {
            let mut remote = self.remote.iter();
            let shown = remote.find_map(|remote| remote.name_of(path));
            shown.unwrap_or_else(|| path.display().to_string())
        };
        let paths = self.read_whole().into_iter();
        let mut files: Vec<_> = paths.map(|path| (shown(&path), path)).collect();
        files.sort();
        files
    }

    /// Returns the files whose content decides about the outputs: not the files of a checkpoint's folder that no
    /// conversion reads, and not weights on the Hub.
    fn read_whole(&self) -> Vec<PathBuf> {
        let described = self.files.iter().filter(|path| is_description(path));
        let paths = described.chain(&self.data).filter(|path| path.is_file());
        let mut paths: Vec<PathBuf> = paths.cloned().collect();
        paths.sort();
        paths.dedup();
        paths
    }

    /// Describes the repositories on the Hub, with the bytes that tensors need.
    pub(super) fn locked_sources<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor> + Clone,
    ) -> anyhow::Result<Vec<LockedSource>> {
        let remote = self.remote.iter();
        let mut sources: Vec<LockedSource> = remote
            .map(|remote| remote.locked(tensors.clone()))
            .collect::<anyhow::Result<_>>()?;
        sources.dedup();
        Ok(sources)
    }

    /// Returns the same files without those in the cache of the Hub.
    pub(super) fn local(&self) -> Vec<PathBuf> {
        let folders: Vec<PathBuf> = self.remote.iter().map(RemoteCheckpoint::folder).collect();
        let mut files = self.read_whole();
        files.retain(|path| !folders.iter().any(|folder| path.starts_with(folder)));
        files
    }

    /// Returns the commits on the Hub that were read, for a plan.
    pub(super) fn commits_read(&self) -> Vec<WorkSource> {
        let sources = self.sources().into_iter();
        sources
            .map(|source| WorkSource {
                repository: source.repository,
                commit: source.commit,
            })
            .collect()
    }

    /// Returns the commits on the Hub that were read.
    pub(super) fn sources(&self) -> Vec<SourceReport> {
        self.remote.iter().map(RemoteCheckpoint::report).collect()
    }

    /// Prints how much was downloaded.
    pub(super) fn report_downloads(&self) {
        for source in self.sources() {
            output::note(&remote::summary(&source));
        }
    }

    /// Formats the commits, which determine the output like the command line does.
    pub(super) fn commits(&self) -> String {
        let sources = self.sources().into_iter();
        sources
            .map(|source| format!(" {}", source.commit))
            .collect()
    }

    /// Adds a file that is read in addition to the model.
    pub(super) fn add(&mut self, path: &Path) {
        self.files.push(path.to_path_buf());
        self.data.push(path.to_path_buf());
    }

    /// Returns the names of a command's outputs. None may be one of the inputs: replacing a file while
    /// it is read would destroy the only copy.
    pub(super) fn output_names(&self, existing: Existing) -> OutputNames {
        OutputNames::new(&self.files, existing)
    }
}

/// Checks whether a file of a checkpoint describes the model.
fn is_description(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_template = || {
        path.parent()
            .is_some_and(|folder| folder.ends_with(CHAT_TEMPLATES))
    };
    name.is_some_and(convert::is_description) || is_template()
}
