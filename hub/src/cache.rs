//! The cache in the layout of the hub's own programs (huggingface_hub): one folder per repository,
//! with `refs/REVISION` (its commit), `blobs/HASH` (contents) and `snapshots/COMMIT/PATH` (links to
//! blobs).
//!
//! It also holds two kinds of files of our own, which those programs ignore: `blobs/HASH.pieces`
//! with its `.ranges`, and `listings/COMMIT.json`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::Problem;

/// The folder of one repository.
#[derive(Clone, Debug)]
pub(crate) struct RepoCache {
    folder: PathBuf,
}

impl RepoCache {
    pub(crate) fn new(cache: &Path, repo: &str) -> RepoCache {
        let folder = format!("models--{}", repo.replace('/', "--"));
        RepoCache {
            folder: cache.join(folder),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder with the files of a commit, at their paths in the repository.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Returns the path of the blob with a hash.
    pub(crate) fn blob(&self, hash: &str) -> PathBuf {
        self.folder.join("blobs").join(hash)
    }

    /// Returns the path of the hub's listing of a commit.
    pub(crate) fn listing(&self, commit: &str) -> PathBuf {
        self.folder.join("listings").join(format!("{commit}.json"))
    }

    /// Returns the commit of a revision when the hub was last asked.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        let commit = read(&self.reference(revision), MAX_COMMIT_BYTES)?;
        let commit = String::from_utf8(commit).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_hash(commit))
    }

    pub(crate) fn set_commit_of(&self, revision: &str, commit: &str) -> Result<(), Problem> {
        self.store(&self.reference(revision), commit.as_bytes())
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision)
    }

    /// Writes a file atomically.
    pub(crate) fn store(&self, path: &Path, bytes: &[u8]) -> Result<(), Problem> {
        let write = || -> io::Result<()> {
            let folder = path.parent().expect("every path is below the folder");
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(bytes)?;
            file.persist(path)?;
            Ok(())
        };
        write().map_err(|source| Problem::Io {
            path: path.to_path_buf(),
            source,
        })
    }

    /// Links a file of a commit to the blob with a hash; returns the link's path in the snapshot.
    pub(crate) fn link(&self, commit: &str, name: &str, hash: &str) -> Result<PathBuf, Problem> {
        let path = self.snapshot(commit).join(name);
        let up = "../".repeat(2 + name.matches('/').count());
        let make = || -> io::Result<()> {
            fs::create_dir_all(path.parent().expect("is in the snapshot"))?;
            // A dangling link would make `symlink` fail.
            if path.is_symlink() {
                fs::remove_file(&path)?;
            }
            match symlink(format!("{up}blobs/{hash}"), &path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        };
        make().map_err(|source| Problem::Io {
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }
}

/// Maximum size of a file with the hash of a commit, in bytes.
const MAX_COMMIT_BYTES: u64 = 1 << 10;

/// Returns the first `limit` bytes of a regular file; `None` if it is something else, such as a link
/// to a device, or cannot be read.
pub(crate) fn read(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let is_file = fs::metadata(path).ok()?.is_file();
    let file = is_file.then(|| File::open(path).ok()).flatten()?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Checks whether a text may be the hash of a commit or of contents.
pub(crate) fn is_hash(text: &str) -> bool {
    (40..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Checks whether a path of a listing stays inside the folder it is joined to.
pub(crate) fn is_inside(path: &str) -> bool {
    path.split('/').all(|part| !["", ".", ".."].contains(&part)) && !path.contains(['\\', '\0'])
}
