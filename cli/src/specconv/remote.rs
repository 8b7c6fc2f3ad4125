//! Checkpoints on the Hub, presented as local files and remote weights.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use convert::{Remote, WeightFiles};
use hub::{Hub, Reference, RemoteFile, Repo, SCHEME};
use schemas::gguf::{ReadAt, SourceError, Tensor};
use schemas::progress::{Task, Unit};
use schemas::report::{LockedRanges, LockedSource, SourceReport};
use sha2::{Digest, Sha256};

use super::lock::Lock;
use crate::{hub_config, output};

/// Size of the first request to each weight file; usually covers the whole header.
const HEADER_BYTES: u64 = 128 << 10;

/// Number of bytes that are read and hashed at once.
const HASHED_BYTES: u64 = 1 << 20;

/// Checks whether an argument is a Hub reference.
pub(super) fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

/// A checkpoint on the Hub.
pub(super) struct RemoteCheckpoint {
    repo: Arc<Repo>,
    name: String,
    /// Requested revision.
    revision: String,
}

impl RemoteCheckpoint {
    /// Resolves the commit and downloads the files that describe the model.
    /// A lock file may name another commit than that of the revision.
    pub(super) fn open(path: &Path, lock: &Lock) -> anyhow::Result<RemoteCheckpoint> {
        let text = path.to_str().context("hf:// reference is not UTF-8")?;
        let mut reference: Reference = text.parse()?;
        let revision = reference.revision.as_deref().unwrap_or("main").to_owned();
        if let Some(commit) = lock.commit(&reference.repo, &revision) {
            reference.revision = Some(commit.to_owned());
        }
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
            revision,
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

    /// Returns the name of a file in the folder of the checkpoint.
    pub(super) fn name_of(&self, path: &Path) -> Option<String> {
        let name = path.strip_prefix(self.folder()).ok()?.to_str()?;
        Some(self.repo.path(name).display().to_string())
    }

    /// Describes the repository, with the bytes of weights that tensors need.
    pub(super) fn locked<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) -> anyhow::Result<LockedSource> {
        let mut by_file: BTreeMap<String, Vec<Range<u64>>> = BTreeMap::new();
        for (name, range) in self.needed(tensors) {
            by_file.entry(name).or_default().push(range);
        }
        let weights = by_file.into_iter().map(|(file, ranges)| {
            let ranges = joined(ranges);
            Ok(LockedRanges {
                sha256: self.sha256(&file, &ranges)?,
                ranges: ranges
                    .iter()
                    .map(|range| format!("{}-{}", range.start, range.end - 1))
                    .collect(),
                file,
            })
        });
        Ok(LockedSource {
            repository: self.repo.name().to_owned(),
            revision: self.revision.clone(),
            commit: self.repo.commit().to_owned(),
            weights: weights.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Hashes ranges of a file.
    fn sha256(&self, name: &str, ranges: &[Range<u64>]) -> anyhow::Result<String> {
        let file = self.repo.open(name)?;
        let file = file.with_context(|| format!("{}: missing", self.repo.path(name).display()))?;
        let mut state = Sha256::new();
        let mut buffer = Vec::new();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let n_bytes = (range.end - at).min(HASHED_BYTES);
                buffer.resize(n_bytes as usize, 0);
                file.read_at(at, &mut buffer)?;
                state.update(&buffer);
                at += n_bytes;
            }
        }
        let digest = state.finalize();
        Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the origin of the checkpoint and the number of downloaded bytes.
    pub(super) fn report(&self) -> SourceReport {
        let is_read = |name: &&str| convert::is_description(name) || convert::is_weights(name);
        let files = self.repo.files().filter(is_read);
        SourceReport {
            repository: self.repo.name().to_owned(),
            revision: self.revision.clone(),
            commit: self.repo.commit().to_owned(),
            fetched_bytes: self.repo.fetched_bytes(),
            total_bytes: files.filter_map(|name| self.repo.size_bytes(name)).sum(),
        }
    }
}

/// Sorts ranges that are not empty, and joins those that touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_joined() {
        assert_eq!(
            joined(vec![8..12, 0..4, 4..8, 20..20, 14..16]),
            [0..12, 14..16]
        );
        assert_eq!(joined(vec![0..10, 2..4, 9..11]), vec![0..11]);
    }
}
