//! Publication of local files: their comparison with a repository, and the upload as one commit. The crate
//! `hf-hub` uploads; the feature `upload` adds it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::config::Network;
use crate::error::{Error, Problem};
use crate::reference::{Reference, SCHEME};
use crate::repo::{Hub, Repo};

/// True if this build can upload.
pub const CAN_UPLOAD: bool = cfg!(feature = "upload");

/// A local file to publish.
#[derive(Clone, Debug)]
pub struct LocalFile {
    /// Path in the repository.
    pub name: String,
    /// Path of the local file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub size_bytes: u64,
}

/// Comparison of a local file with a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The repository has no file of this name.
    New,
    /// The contents differ.
    Changed,
    /// The contents are equal.
    Equal,
}

/// Local files compared with the files of a branch.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// `org/name`.
    pub repo: String,
    /// The branch.
    pub revision: String,
    /// Commit of the branch; `None` if the repository does not exist.
    pub parent: Option<String>,
    /// The files, in the given order.
    pub files: Vec<(LocalFile, Change)>,
    /// Paths that only the repository has.
    pub only_on_hub: Vec<String>,
}

/// Settings of an upload.
#[derive(Clone, Debug)]
pub struct Upload {
    /// Commit message.
    pub message: String,
    /// True if a repository that has to be created is private.
    pub is_private: bool,
}

impl Comparison {
    /// Iterates over the files that differ.
    pub fn to_upload(&self) -> impl Iterator<Item = &LocalFile> {
        let differs = self
            .files
            .iter()
            .filter(|(_, change)| *change != Change::Equal);
        differs.map(|(file, _)| file)
    }
}

impl Hub {
    /// Compares files with those of a branch, by the hashes that the hub lists. Calls `progress` with the bytes
    /// of each compared file.
    ///
    /// # Errors
    /// The repository cannot be read, or a local file cannot.
    pub fn compare(
        &self,
        repo: &str,
        revision: &str,
        files: Vec<LocalFile>,
        progress: &dyn Fn(u64),
    ) -> Result<Comparison, Error> {
        let reference = Reference {
            repo: repo.to_owned(),
            revision: Some(revision.to_owned()),
            file: None,
        };
        if self.config().network == Network::Offline {
            let cache = self.config().cache.clone();
            return Err(Problem::Offline { cache }.of(reference.to_string()));
        }
        let opened = match self.open(&reference) {
            Ok(opened) => Some(opened),
            Err(error) if is_absent(&error.problem) => None,
            Err(error) => return Err(error),
        };
        let mut compared = Vec::new();
        for file in files {
            let change = match &opened {
                Some(opened) => opened.compare(&file)?,
                None => Change::New,
            };
            progress(file.size_bytes);
            compared.push((file, change));
        }
        let is_local = |name: &&str| compared.iter().any(|(file, _)| file.name == **name);
        let hub_files = opened.iter().flat_map(Repo::files);
        let only_on_hub = hub_files.filter(|name| !is_local(name)).map(str::to_owned);
        Ok(Comparison {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            parent: opened.as_ref().map(|opened| opened.commit().to_owned()),
            only_on_hub: only_on_hub.collect(),
            files: compared,
        })
    }

    /// Uploads the files that differ, as one commit; returns its hash. Creates the repository if it does not
    /// exist. Fails if the branch has changed since the comparison. Calls `progress` with the bytes processed so
    /// far; data that the hub already has is not sent again.
    ///
    /// # Errors
    /// The hub rejects the token or the commit, or cannot be reached; this build cannot upload.
    pub fn upload(
        &self,
        comparison: &Comparison,
        upload: &Upload,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<String, Error> {
        let subject = format!("{SCHEME}{}", comparison.repo);
        self.check_token().map_err(|problem| problem.of(&subject))?;
        hf_client::upload(self.config(), comparison, upload, progress)
            .map_err(|problem| problem.of(subject))
    }

    /// Rejects an absent token, and one that a header cannot carry.
    fn check_token(&self) -> Result<(), Problem> {
        match &self.config().token {
            None => Err(Problem::NoToken),
            Some(token) if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(()),
            Some(_) => Err(Problem::TokenCharacter),
        }
    }
}

/// True if the repository does not exist. Without a token, the hub answers as if it were private.
fn is_absent(problem: &Problem) -> bool {
    matches!(problem, Problem::NoRepo)
}

impl Repo {
    /// Compares a local file with the file of the same name.
    fn compare(&self, file: &LocalFile) -> Result<Change, Error> {
        let Some((size_bytes, hash)) = self.listed(&file.name) else {
            return Ok(Change::New);
        };
        let (Some(hash), true) = (hash, size_bytes == Some(file.size_bytes)) else {
            return Ok(Change::Changed);
        };
        let error = |source| {
            let path = file.path.clone();
            Problem::Io { path, source }
        };
        let compare = || {
            let opened = open(&file.path)?;
            let read =
                |offset: u64, out: &mut [u8]| opened.read_exact_at(out, offset).map_err(error);
            Ok(match hash.check(hash.of(file.size_bytes, &read)?) {
                Ok(()) => Change::Equal,
                Err(_) => Change::Changed,
            })
        };
        compare().map_err(|problem: Problem| problem.of(file.path.display().to_string()))
    }
}

fn open(path: &Path) -> Result<File, Problem> {
    File::open(path).map_err(|source| Problem::Io {
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(feature = "upload")]
mod hf_client {
    use hf_hub::progress::{ProgressEvent, ProgressHandler, UploadEvent};
    use hf_hub::repository::CommitOperation;
    use hf_hub::{HFClient, HFError, RepoTypeModel, split_id};

    use super::{Comparison, Upload};
    use crate::config::HubConfig;
    use crate::error::Problem;

    /// Passes the bytes processed so far to a function.
    struct Handler<F> {
        progress: F,
        /// Bytes of all files.
        total_bytes: u64,
    }

    impl<F: Fn(u64) + Send + Sync> ProgressHandler for Handler<F> {
        fn on_progress(&self, event: &ProgressEvent) {
            match event {
                ProgressEvent::Upload(UploadEvent::Progress {
                    bytes_completed, ..
                }) => (self.progress)(*bytes_completed),
                // Uploads of less than 100 ms, and small files, have no progress of their own.
                ProgressEvent::Upload(UploadEvent::Committing) => (self.progress)(self.total_bytes),
                _ => {}
            }
        }
    }

    pub(super) fn upload(
        config: &HubConfig,
        comparison: &Comparison,
        upload: &Upload,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<String, Problem> {
        // Messages of the crate state address and status, never the token.
        let problem = |error: HFError| Problem::Upload(error.to_string());
        let mut builder = HFClient::builder()
            .endpoint(config.endpoint.as_str())
            .user_agent(concat!("specconv/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &config.token {
            builder = builder.token(token.as_str());
        }
        let client = builder.build_sync().map_err(problem)?;
        if comparison.parent.is_none() {
            let created = client
                .create_repository()
                .repo_id(&comparison.repo)
                .repo_type(RepoTypeModel)
                .private(upload.is_private)
                .exist_ok(true);
            created.send().map_err(problem)?;
        }
        let (owner, name) = split_id(&comparison.repo);
        let handler = Handler {
            progress,
            total_bytes: comparison.to_upload().map(|file| file.size_bytes).sum(),
        };
        let files = comparison.to_upload();
        let operations = files.map(|file| CommitOperation::add_file(&file.name, &file.path));
        let commit = client
            .model(owner, name)
            .create_commit()
            .operations(operations.collect())
            .commit_message(upload.message.as_str())
            .revision(comparison.revision.as_str())
            .maybe_parent_commit(comparison.parent.as_deref())
            .progress(handler)
            .send()
            .map_err(problem)?;
        commit
            .commit_oid
            .ok_or_else(|| Problem::UnexpectedResponse("a commit without a hash".to_owned()))
    }
}

#[cfg(not(feature = "upload"))]
mod hf_client {
    use super::{Comparison, Upload};
    use crate::config::HubConfig;
    use crate::error::Problem;

    pub(super) fn upload(
        _: &HubConfig,
        _: &Comparison,
        _: &Upload,
        _: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<String, Problem> {
        Err(Problem::NoUpload)
    }
}
