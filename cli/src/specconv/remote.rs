//! Checkpoints on the Hub, presented as local files and remote weights.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use convert::{Remote, WeightFiles};
use hub::{Hub, Reference, RemoteFile, Repo, SCHEME};
use schemas::gguf::{ReadAt, SourceError, Tensor};
use schemas::progress::{Task, Unit};
use schemas::report::SourceReport;

use crate::{hub_config, output};

/// Size of the first request to each weight file; usually covers the whole header.
const HEADER_BYTES: u64 = 128 << 10;

/// Checks whether an argument is a Hub reference.
pub(super) fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

/// A checkpoint on the Hub.
pub(super) struct RemoteCheckpoint {
    repo: Arc<Repo>,
    name: String,
}

impl RemoteCheckpoint {
    /// Resolves the commit and downloads the files that describe the model.
    pub(super) fn open(path: &Path) -> anyhow::Result<RemoteCheckpoint> {
        let text = path.to_str().context("hf:// reference is not UTF-8")?;
        let reference: Reference = text.parse()?;
        if let Some(file) = &reference.file {
            anyhow::bail!(
                "{reference}: names the file {file}, expected a repository: hf://org/name[@revision]"
            );
        }
        let repo = Hub::new(hub_config::from_environment()?).open(&reference)?;
        let names: Vec<&str> = repo.files().collect();
        for name in names.iter().filter(|name| convert::is_description(name)) {
            repo.fetch(name)?;
        }
        let (_, name) = reference.repo.split_once('/').context("org/name")?;
        Ok(RemoteCheckpoint {
            name: name.to_owned(),
            repo: Arc::new(repo),
        })
    }

    /// Downloads the headers of the weights.
    pub(super) fn fetch_headers(&self) -> anyhow::Result<()> {
        let weights = self.repo.files().filter(|name| convert::is_weights(name));
        let headers: Vec<_> = weights.map(|name| (name, 0..HEADER_BYTES)).collect();
        Ok(self.repo.prefetch(&headers, &|_| ())?)
    }

    /// Returns the folder with the files that describe the model.
    pub(super) fn folder(&self) -> PathBuf {
        self.repo.folder()
    }

    /// Returns access to the weights, for a conversion.
    pub(super) fn remote(&self) -> Remote {
        Remote {
            name: self.name.clone(),
            weights: Arc::new(Weights {
                place: PathBuf::from(format!("{SCHEME}{}", self.repo.name())),
                repo: Arc::clone(&self.repo),
            }),
        }
    }

    /// Returns the files and byte ranges of this repository that tensors need.
    fn needed<'a>(&self, tensors: impl Iterator<Item = &'a Tensor>) -> Vec<(String, Range<u64>)> {
        let extents = tensors.flat_map(|tensor| tensor.source.extents());
        let repository = self.repo.path("");
        let name = |path: &Path| {
            let text = path.to_str()?.strip_prefix(repository.to_str()?)?;
            Some(text.to_owned())
        };
        extents
            .filter_map(|extent| Some((name(&extent.path)?, extent.range)))
            .collect()
    }

    /// Downloads the data of tensors, several ranges in parallel.
    pub(super) fn prefetch<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) -> anyhow::Result<()> {
        let needed = self.needed(tensors);
        let ranges: Vec<_> = needed
            .iter()
            .map(|(name, range)| (name.as_str(), range.clone()))
            .collect();
        let url = format!("{SCHEME}{}", self.repo.name());
        let label = format!("download {url}");
        let task = Task::start(&label, self.repo.missing_bytes(&ranges)?, Unit::Bytes);
        Ok(self.repo.prefetch(&ranges, &|n| task.advance(n))?)
    }

    /// Returns the origin of the checkpoint and the number of downloaded bytes.
    pub(super) fn report(&self) -> SourceReport {
        let is_read = |name: &&str| convert::is_description(name) || convert::is_weights(name);
        let files = self.repo.files().filter(is_read);
        SourceReport {
            repository: self.repo.name().to_owned(),
            revision: self.repo.revision().to_owned(),
            commit: self.repo.commit().to_owned(),
            fetched_bytes: self.repo.fetched_bytes(),
            total_bytes: files.filter_map(|name| self.repo.size_bytes(name)).sum(),
        }
    }
}

/// Access to the weights of a repository.
struct Weights {
    place: PathBuf,
    repo: Arc<Repo>,
}

impl WeightFiles for Weights {
    fn location(&self) -> &Path {
        &self.place
    }

    fn names(&self) -> Vec<String> {
        self.repo.files().map(str::to_owned).collect()
    }

    fn open(&self, name: &str) -> Result<Option<Arc<dyn ReadAt>>, SourceError> {
        let file = self.repo.open(name)?;
        Ok(file.map(|file| Arc::new(Fetched(file)) as Arc<dyn ReadAt>))
    }
}

/// A weight file of a repository, read over the network or from the cache.
struct Fetched(Arc<RemoteFile>);

impl ReadAt for Fetched {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        Ok(self.0.read_at(offset, out)?)
    }
}

/// Formats the final line about the download.
pub(super) fn summary(report: &SourceReport) -> String {
    format!(
        "downloaded {} of {} from hf://{} at commit {}",
        output::bytes(report.fetched_bytes),
        output::bytes(report.total_bytes),
        report.repository,
        report.commit
    )
}
