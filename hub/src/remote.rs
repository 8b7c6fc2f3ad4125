//! A file on the hub of which only the requested bytes are fetched.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::RepoCache;
use crate::download::{Sink, Target};
use crate::error::{Error, Problem};
use crate::hash::Hash;
use crate::http::Http;
use crate::pieces::Pieces;
use crate::xet::{self, XetFile};

/// Minimum bytes per fetch of a read, so that the header of a typical safetensors file takes one
/// request.
const READ_AHEAD_BYTES: u64 = 128 << 10;

/// A file on the hub, fetched as far as it is read.
pub struct RemoteFile {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) http: Arc<Http>,
    pub(crate) target: Target,
    pub(crate) hash: Option<Hash>,
    pub(crate) kept: Kept,
}

/// Local state of a file.
pub(crate) enum Kept {
    Whole(File),
    Pieces(Pieces),
}

impl RemoteFile {
    /// Returns the file's name in messages, `hf://org/name/file`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the whole file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.target.size_bytes
    }

    /// Fills `out` with the bytes at `offset`, and fetches those that are missing.
    ///
    /// # Errors
    /// The file ends before `offset + out.len()`, or cannot be fetched.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(out.len() as u64);
        let end = end.filter(|&end| end <= self.size_bytes()).ok_or_else(|| {
            Problem::Range {
                asked: format!("{} at {offset}", out.len()),
                found: format!("a file of {} bytes", self.size_bytes()),
            }
            .of(&self.target.subject)
        })?;
        let ahead = end.max((offset + READ_AHEAD_BYTES).min(self.size_bytes()));
        let missing = self.missing(&(offset..ahead)).into_iter();
        for range in missing.filter(|range| range.start < end) {
            self.fetch(range)?;
        }
        let read = match &self.kept {
            Kept::Whole(file) => file
                .read_exact_at(out, offset)
                .map_err(|source| Problem::Io {
                    path: self.path.clone(),
                    source,
                }),
            Kept::Pieces(pieces) => pieces.read(offset, out),
        };
        read.map_err(|problem| problem.of(&self.target.subject))
    }

    /// Returns the parts of a range that have to be fetched.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        match &self.kept {
            Kept::Whole(_) => Vec::new(),
            Kept::Pieces(pieces) => pieces.missing(range),
        }
    }

    /// Fetches a range. After a failure, the bytes received so far are kept.
    pub(crate) fn fetch(&self, range: Range<u64>) -> Result<(), Error> {
        self.receive(range, |range, sink| {
            self.target.fetch(&self.http, range, sink)
        })
    }

    /// Fetches the missing bytes of a file if it is in Xet storage; calls `progress` with the
    /// bytes of each chunk. A failure is reported, and leaves the rest to ordinary requests.
    ///
    /// # Errors
    /// The hub cannot be asked where the file is, or the cache cannot be written.
    pub(crate) fn fetch_from_xet(&self, repo: &str, progress: &dyn Fn(u64)) -> Result<(), Error> {
        let missing = self.missing(&(0..self.size_bytes()));
        if missing.is_empty() {
            return Ok(());
        }
        let Some(hash) = self.target.xet_hash(&self.http)? else {
            return Ok(());
        };
        let file = XetFile {
            repo,
            commit: &self.target.commit,
            hash: &hash,
            size_bytes: self.size_bytes(),
        };
        let config = self.http.config();
        let subject = |problem: Problem| problem.of(&self.target.subject);
        for range in missing {
            let fetched = self.receive(range, |range, sink| {
                let mut count = |offset, bytes: &[u8]| {
                    sink(offset, bytes)?;
                    self.http.count(bytes.len() as u64);
                    progress(bytes.len() as u64);
                    Ok(())
                };
                xet::fetch(config, &file, range, &mut count).map_err(subject)
            });
            match fetched {
                Err(error) if !matches!(error.problem, Problem::Io { .. }) => {
                    (config.on_retry)(&error, Duration::ZERO);
                    break;
                }
                fetched => fetched?,
            }
        }
        Ok(())
    }

    /// Writes the bytes of a range as they arrive from `fetch`, and records those that did.
    fn receive(
        &self,
        range: Range<u64>,
        fetch: impl FnOnce(Range<u64>, &mut Sink<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Kept::Pieces(pieces) = &self.kept else {
            return Ok(());
        };
        let piece_bytes = self.http.config().piece_bytes;
        let (mut recorded, mut at) = (range.start, range.start);
        let fetched = fetch(range, &mut |offset, bytes| {
            pieces.write(offset, bytes)?;
            at = offset + bytes.len() as u64;
            // A range of Xet storage is a whole file, of which a killed process must not lose everything.
            if at - recorded >= piece_bytes {
                pieces.add(recorded..at)?;
                recorded = at;
            }
            Ok(())
        });
        let added = pieces.add(recorded..at);
        fetched.and(added.map_err(|problem| problem.of(&self.target.subject)))
    }

    /// Checks the hash of a complete file and moves it into the cache; does nothing if bytes are
    /// missing.
    pub(crate) fn settle(&self, cache: &RepoCache) -> Result<(), Error> {
        let Kept::Pieces(pieces) = &self.kept else {
            return Ok(());
        };
        let Some(hash) = self.hash.as_ref().filter(|_| pieces.is_whole()) else {
            return Ok(());
        };
        let subject = |problem: Problem| problem.of(&self.target.subject);
        let read = |offset: u64, out: &mut [u8]| pieces.read(offset, out);
        let found = hash.of(self.size_bytes(), &read).map_err(subject)?;
        if let Err(problem) = hash.check(found) {
            pieces.discard();
            return Err(subject(problem));
        }
        pieces.rename(&cache.blob(hash.text())).map_err(subject)?;
        let linked = cache.link(&self.target.commit, &self.name, hash.text());
        linked.map(drop).map_err(subject)
    }
}

/// Opens a file of the cache; returns it with its size in bytes.
pub(crate) fn open(path: &Path) -> Result<(File, u64), Problem> {
    let open = || -> io::Result<_> {
        let file = File::open(path)?;
        let size_bytes = file.metadata()?.len();
        Ok((file, size_bytes))
    };
    open().map_err(|source| Problem::Io {
        path: path.to_path_buf(),
        source,
    })
}
