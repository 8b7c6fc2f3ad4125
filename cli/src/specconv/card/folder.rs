//! The GGUF files of a folder, with their sizes, types and hashes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use schemas::gguf::{self, Metadata};
use schemas::progress::{Task, Unit};
use schemas::report::CardFile;

use crate::hint::Hinted;
use crate::specconv::file_type;

/// A folder to publish.
pub(super) struct Folder {
    path: PathBuf,
    /// The models, the smallest first.
    pub(super) models: Vec<Model>,
    /// Name and SHA-256 of every GGUF file, in order of their names.
    hashes: Vec<(String, String)>,
}

/// A model of the folder.
pub(super) struct Model {
    /// Its entry in the report.
    pub(super) card: CardFile,
    /// Its keys.
    pub(super) metadata: Metadata,
}

impl Folder {
    /// Opens and hashes all GGUF files of a folder.
    pub(super) fn open(path: &Path) -> anyhow::Result<Folder> {
        let shown = || path.display().to_string();
        let mut files = Vec::new();
        for entry in fs::read_dir(path).with_context(shown)? {
            let file = entry.with_context(shown)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "gguf")
            {
                files.push(file);
            }
        }
        files.sort();
        let sizes = files.iter().map(|file| Ok(fs::metadata(file)?.len()));
        let sizes: Vec<u64> = sizes.collect::<anyhow::Result<_>>().with_context(shown)?;
        let task = Task::start("hash", sizes.iter().sum(), Unit::Bytes);
        let mut hashes = Vec::new();
        for (file, size) in files.iter().zip(&sizes) {
            let hash = gguf::file_sha256(file, &|| false);
            hashes.push((
                name(file),
                hash.with_context(|| file.display().to_string())?,
            ));
            task.advance(*size);
        }
        drop(task);
        let mut folder = Folder {
            path: path.to_path_buf(),
            models: Vec::new(),
            hashes,
        };
        for file in &files {
            folder.models.extend(folder.model(file)?);
        }
        if folder.models.is_empty() {
            let message = format!("{}: no GGUF model, expected the files to publish", shown());
            let hint = format!(
                "specconv quantize MODEL.gguf {}/MODEL-{{FTYPE}}.gguf Q4_K_M",
                shown()
            );
            return Err(Hinted::new(message, hint).into());
        }
        folder.models.sort_by_key(|model| model.card.size_bytes);
        Ok(folder)
    }

    /// Describes a model; `None` for later shards, importance matrices and other files without weights of a model.
    fn model(&self, file: &Path) -> anyhow::Result<Option<Model>> {
        let parts = gguf::part_paths(file)?;
        if parts.first().is_some_and(|first| first != file) {
            return Ok(None);
        }
        let plan = gguf::open(file)?;
        let kind = plan.metadata.str("general.type").ok().flatten();
        if kind.is_some_and(|kind| kind != "model") || plan.n_elements() == 0 {
            return Ok(None);
        }
        let mut size_bytes = 0;
        let mut sha256 = Vec::new();
        for part in &parts {
            let found = self.hashes.iter().find(|(known, _)| *known == name(part));
            let (_, hash) = found.with_context(|| {
                format!(
                    "{}: a shard outside of {}",
                    part.display(),
                    self.path.display()
                )
            })?;
            size_bytes += fs::metadata(part)?.len();
            sha256.push(hash.clone());
        }
        Ok(Some(Model {
            card: CardFile {
                name: name(file),
                file_type: file_type::of(&plan.metadata),
                size_bytes,
                bits_per_weight: plan.data_bytes() as f64 * 8.0 / plan.n_elements() as f64,
                sha256,
                kld: None,
                same_top: None,
                perplexity_ratio: None,
                draft: None,
            },
            metadata: plan.metadata,
        }))
    }

    /// Finds the model that a report is about: the one with this hash. `None` if the folder has no such file.
    ///
    /// # Errors
    /// The folder has a file of this name with another hash: the report is about an earlier file.
    pub(super) fn find(
        &mut self,
        report: &Path,
        file: &str,
        sha256: &str,
    ) -> anyhow::Result<Option<&mut Model>> {
        let is_same = |model: &Model| model.card.sha256.first().is_some_and(|own| own == sha256);
        if let Some(i) = self.models.iter().position(is_same) {
            return Ok(self.models.get_mut(i));
        }
        let file = file.rsplit('/').next().unwrap_or(file);
        let other = self.models.iter().find(|model| model.card.name == file);
        ensure!(
            other.is_none(),
            "{}: about a {file} with SHA-256 {sha256}, found {} in {}: the file has changed since, measure it \
             again",
            report.display(),
            other
                .and_then(|model| model.card.sha256.first())
                .map_or("none", String::as_str),
            self.path.display()
        );
        Ok(None)
    }

    /// Returns the text of the first file that has a key.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        let mut models = self.models.iter();
        models.find_map(|model| Some(model.metadata.str(key).ok()??.to_owned()))
    }

    /// Returns the list of texts of the first file that has a key.
    pub(super) fn texts(&self, key: &str) -> Vec<String> {
        let mut models = self.models.iter();
        let found = models.find_map(|model| model.metadata.strings(key).ok().flatten());
        let texts = found.into_iter().flatten();
        texts.map(|text| text.to_string()).collect()
    }

    /// Returns the name of the model: `general.name`, else the folder's.
    pub(super) fn title(&self) -> String {
        self.text("general.name").unwrap_or_else(|| {
            let path = self
                .path
                .canonicalize()
                .unwrap_or_else(|_| self.path.clone());
            name(&path)
        })
    }

    /// Lists the hashes in the format of `sha256sum`.
    pub(super) fn sums(&self) -> String {
        let lines = self.hashes.iter();
        lines
            .map(|(name, hash)| format!("{hash}  {name}\n"))
            .collect()
    }
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
