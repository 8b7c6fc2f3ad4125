//! Checkpoints on the Hub: where the environment says that it is and where files are kept, and
//! its files as the libraries read them.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use anyhow::Context;
use convert::{Remote, WeightFiles};
use hub::{Hub, HubConfig, Network, Reference, RemoteFile, Repo, Retry, SCHEME, Timeouts};
use schemas::gguf::{ReadAt, SourceError, Tensor};
use schemas::input;
use schemas::report::SourceReport;

use crate::output;

/// What every weight file is asked for at first: in most, the whole header.
const HEADER_BYTES: u64 = 128 << 10;
/// Requests at the same time.
const CONNECTIONS: usize = 8;
/// Largest file of a token, in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;
/// Most bytes of a request.
const PIECE_BYTES: u64 = 16 << 20;

/// Whether an argument means something on the Hub.
pub(super) fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

/// A checkpoint on the Hub.
pub(super) struct RemoteCheckpoint {
    repo: Arc<Repo>,
    name: String,
}

impl RemoteCheckpoint {
    /// Settles the commit, and fetches what describes the model.
    pub(super) fn open(path: &Path) -> anyhow::Result<RemoteCheckpoint> {
        let text = path.to_str().context("a reference is UTF-8")?;
        let reference: Reference = text.parse()?;
        if let Some(file) = &reference.file {
            anyhow::bail!("{reference}: {file} is one file, expected hf://org/name[@revision]");
        }
        let config = config(&|name| env::var_os(name))?;
        let repo = Hub::new(config).open(&reference)?;
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

    /// Fetches the headers of the weights.
    pub(super) fn fetch_headers(&self) -> anyhow::Result<()> {
        let weights = self.repo.files().filter(|name| convert::is_weights(name));
        let headers: Vec<_> = weights.map(|name| (name, 0..HEADER_BYTES)).collect();
        Ok(self.repo.prefetch(&headers, &|_| ())?)
    }

    /// The folder with the files that describe the model.
    pub(super) fn folder(&self) -> PathBuf {
        self.repo.folder()
    }

    /// The rest, for a conversion.
    pub(super) fn remote(&self) -> Remote {
        Remote {
            name: self.name.clone(),
            weights: Arc::new(Weights {
                place: PathBuf::from(format!("{SCHEME}{}", self.repo.name())),
                repo: Arc::clone(&self.repo),
            }),
        }
    }

    /// What of this repository tensors are made of.
    fn wanted<'a>(&self, tensors: impl Iterator<Item = &'a Tensor>) -> Vec<(String, Range<u64>)> {
        let extents = tensors.flat_map(|tensor| tensor.source.extents());
        let place = self.repo.path("");
        let name = |path: &Path| {
            let text = path.to_str()?.strip_prefix(place.to_str()?)?;
            Some(text.to_owned())
        };
        extents
            .filter_map(|extent| Some((name(&extent.path)?, extent.range)))
            .collect()
    }

    /// Fetches what tensors are made of, several pieces at a time.
    pub(super) fn prefetch<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) -> anyhow::Result<()> {
        let wanted = self.wanted(tensors);
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(n, r)| (n.as_str(), r.clone()))
            .collect();
        let place = format!("{SCHEME}{}", self.repo.name());
        let bar = output::progress(&place, self.repo.missing_bytes(&wanted)?);
        let fetched = self.repo.prefetch(&wanted, &|n| bar.inc(n));
        bar.finish_and_clear();
        Ok(fetched?)
    }

    /// Where the checkpoint came from, and how much of it had to come.
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

/// The weights of a repository.
struct Weights {
    place: PathBuf,
    repo: Arc<Repo>,
}

impl WeightFiles for Weights {
    fn place(&self) -> &Path {
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

/// A file of a repository.
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

/// What the environment says, by the names that the Hub's own programs read.
fn config(variable: &dyn Fn(&str) -> Option<OsString>) -> anyhow::Result<HubConfig> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let path = |name: &str| set(name).map(PathBuf::from);
    let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
    let caches = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let home = path("HF_HOME").or_else(|| Some(caches()?.join("huggingface")));
    let cache = path("HF_HUB_CACHE").or_else(|| Some(home.as_ref()?.join("hub")));
    let token_file = path("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")));
    let token = match (text("HF_TOKEN"), token_file.filter(|file| file.exists())) {
        (None, Some(file)) => {
            let token = input::read_text(&file, input::Kind::Stream, MAX_TOKEN_BYTES);
            Some(token.with_context(|| file.display().to_string())?)
        }
        (token, _) => token,
    };
    let token = token.map(|token| token.trim().to_owned());
    let is_on = |name: &str| {
        text(name).is_some_and(|value| {
            ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str())
        })
    };
    Ok(HubConfig {
        endpoint: text("HF_ENDPOINT").unwrap_or("https://huggingface.co".to_owned()),
        token: token.filter(|token| !token.is_empty()),
        cache: cache.context("no folder for files of the Hub: set HF_HOME or HOME")?,
        network: match is_on("HF_HUB_OFFLINE") {
            true => Network::Offline,
            false => Network::Online,
        },
        retry: Retry::default(),
        timeouts: Timeouts::default(),
        connections: CONNECTIONS,
        piece_bytes: PIECE_BYTES,
        on_retry: Arc::new(|error, pause: Duration| {
            output::note(&format_args!(
                "{error}; trying again in {} s",
                pause.as_secs_f32()
            ));
        }),
        sleep: Arc::new(thread::sleep),
    })
}

/// The last line about what was fetched.
pub(super) fn summary(report: &SourceReport) -> String {
    format!(
        "fetched {} of {} of hf://{} at commit {}",
        output::bytes(report.fetched_bytes),
        output::bytes(report.total_bytes),
        report.repository,
        report.commit
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> HubConfig {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name);
        config(&|name| find(name).map(|(_, value)| value.into())).unwrap()
    }

    #[test]
    fn the_environment_is_read_as_the_hubs_own_programs_do() {
        let plain = of(&[("HOME", "/h")]);
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!((plain.token, plain.network), (None, Network::Online));
        let caches = of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]);
        assert_eq!(caches.cache, Path::new("/c/huggingface/hub"));
        let all = of(&[
            ("HF_HOME", "/f"),
            ("HF_TOKEN", " hf_x\n"),
            ("HF_ENDPOINT", "http://mirror"),
            ("HF_HUB_OFFLINE", "True"),
        ]);
        assert_eq!(all.cache, Path::new("/f/hub"));
        assert_eq!(all.token.as_deref(), Some("hf_x"));
        assert_eq!(all.endpoint, "http://mirror");
        assert_eq!(all.network, Network::Offline);
        let cache = of(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/g")]);
        assert_eq!(cache.cache, Path::new("/g"));
        assert!(config(&|_| None).is_err());
    }

    #[test]
    fn the_token_may_lie_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let token = |more: &[(&str, &str)]| of(&[&[("HF_HOME", home)], more].concat()).token;
        assert_eq!(token(&[]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_TOKEN", "hf_x")]).as_deref(), Some("hf_x"));
        assert_eq!(token(&[("HF_TOKEN_PATH", "/nowhere/x")]), None);
    }
}
