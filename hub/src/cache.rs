//! The cache in the layout of the hub's own programs (huggingface_hub): one folder per repository,
//! with `refs/REVISION` (its commit), `blobs/HASH` (contents) and `snapshots/COMMIT/PATH` (links to
//! blobs).
//!
//! It also holds two kinds of files of our own, which those programs ignore: `blobs/HASH.pieces`
//! with its `.ranges`, and `listings/COMMIT.json`. `specconv.partial` is a file that is being written.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
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

    /// Writes a small file atomically: to the repository's partial file, which is then renamed. A
    /// partial file that a killed process left is overwritten by the next one.
    pub(crate) fn store(&self, path: &Path, bytes: &[u8]) -> Result<(), Problem> {
        let write = || -> io::Result<()> {
            fs::create_dir_all(path.parent().expect("every path is below the folder"))?;
            let partial = self.folder.join(PARTIAL);
            let mut file = lock_partial(&partial)?;
            file.set_len(0)?;
            file.write_all(bytes)?;
            fs::rename(&partial, path)
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

/// Name of a repository's partial file.
const PARTIAL: &str = "specconv.partial";

/// Opens the partial file and waits until no other process or thread writes to it.
fn lock_partial(path: &Path) -> io::Result<File> {
    loop {
        let mut options = File::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        // On file systems without locks, other processes cannot be detected.
        let _ = file.lock();
        let locked = file.metadata()?;
        // While this process waited, the writer renamed the file.
        let is_same = |now: fs::Metadata| (now.dev(), now.ino()) == (locked.dev(), locked.ino());
        if fs::metadata(path).is_ok_and(is_same) {
            return Ok(file);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_file_of_a_killed_process_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(folder.path(), "org/name");
        fs::create_dir_all(cache.folder()).unwrap();
        fs::write(cache.folder().join(PARTIAL), "a longer text than a commit").unwrap();
        let commit = "0".repeat(40);
        cache.set_commit_of("main", &commit).unwrap();
        assert_eq!(cache.commit_of("main"), Some(commit));
        assert!(!cache.folder().join(PARTIAL).exists());
    }

    #[test]
    fn writers_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(folder.path(), "org/name");
        std::thread::scope(|scope| {
            for i in 0..8 {
                let cache = &cache;
                scope.spawn(move || {
                    let blob = cache.blob(&i.to_string());
                    cache.store(&blob, &vec![i; 1000 * usize::from(i)]).unwrap();
                });
            }
        });
        for i in 0..8u8 {
            let stored = fs::read(cache.blob(&i.to_string())).unwrap();
            assert_eq!(stored, vec![i; 1000 * usize::from(i)]);
        }
    }
}
