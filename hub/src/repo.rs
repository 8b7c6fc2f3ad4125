//! A hub, and a repository of it at one commit.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rangemap::RangeSet;
use serde::Deserialize;

use crate::cache::{self, RepoCache, is_hash, is_inside};
use crate::config::{HubConfig, Network};
use crate::download::{Target, content_range};
use crate::error::{Error, Problem};
use crate::hash::Hash;
use crate::http::{Failure, Http, Request, escape, text};
use crate::pieces::Pieces;
use crate::reference::{Reference, SCHEME};
use crate::remote::{self, Kept, RemoteFile};
use crate::xet;

/// Maximum size of the hub's response about a repository.
const MAX_LISTING_BYTES: u64 = 64 << 20;
/// Maximum size of a file that is fetched whole.
const MAX_SMALL_BYTES: u64 = 1 << 30;

/// A model hub.
pub struct Hub {
    http: Arc<Http>,
}

impl Hub {
    /// Creates a hub from a configuration, without any request.
    pub fn new(mut config: HubConfig) -> Hub {
        let n = config.endpoint.trim_end_matches('/').len();
        config.endpoint.truncate(n);
        Hub {
            http: Arc::new(Http::new(config)),
        }
    }

    pub(crate) fn config(&self) -> &HubConfig {
        self.http.config()
    }

    /// Resolves a reference to a commit, and lists its files.
    ///
    /// # Errors
    /// There is no such repository or revision, access is denied, or the hub cannot be reached.
    pub fn open(&self, reference: &Reference) -> Result<Repo, Error> {
        let subject = Reference {
            file: None,
            ..reference.clone()
        };
        let subject = subject.to_string();
        let config = self.http.config();
        let cache = RepoCache::new(&config.cache, &reference.repo);
        let revision = reference.revision.as_deref().unwrap_or("main");
        let known = || {
            let commit = match is_hash(revision) {
                true => Some(revision.to_owned()),
                false => cache.commit_of(revision),
            };
            commit.and_then(|commit| Listing::cached(&cache, &commit))
        };
        let listing = match config.network {
            Network::Offline => known().ok_or_else(|| {
                let cache = cache.folder().to_path_buf();
                Problem::Offline { cache }.of(&subject)
            })?,
            // A commit never changes, so a cached listing is valid.
            Network::Online => match known().filter(|listing| listing.sha == revision) {
                Some(listing) => listing,
                None => self.ask(&reference.repo, revision, &subject, &cache)?,
            },
        };
        Ok(Repo {
            http: Arc::clone(&self.http),
            name: reference.repo.clone(),
            revision: revision.to_owned(),
            listing,
            cache,
            open: Mutex::default(),
        })
    }

    /// Requests the listing of a revision and caches it.
    fn ask(
        &self,
        repo: &str,
        revision: &str,
        subject: &str,
        cache: &RepoCache,
    ) -> Result<Listing, Error> {
        let address = format!(
            "{}/api/models/{repo}/revision/{}?blobs=true",
            self.http.config().endpoint,
            escape(revision, &[])
        );
        let response = self.http.retry(subject, || {
            let response = self.http.get(&address, None, Request::Revision(revision))?;
            let mut body = Vec::new();
            let read = response.body.take(MAX_LISTING_BYTES).read_to_end(&mut body);
            read.map_err(|error| {
                Failure::from(Problem::Transport {
                    host: response.host,
                    what: error.to_string(),
                })
            })?;
            Ok(body)
        })?;
        let listing = Listing::parse(&response).map_err(|problem| problem.of(subject))?;
        let store = || {
            cache.store(&cache.listing(&listing.sha), &response)?;
            match listing.sha == revision {
                true => Ok(()),
                false => cache.set_commit_of(revision, &listing.sha),
            }
        };
        store().map_err(|problem| problem.of(subject))?;
        Ok(listing)
    }
}

/// The hub's listing of a commit.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

/// A file of a listing.
#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

/// Metadata of a large file.
#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    fn parse(json: &[u8]) -> Result<Listing, Problem> {
        let listing: Listing = serde_json::from_slice(json)
            .map_err(|error| Problem::UnexpectedResponse(error.to_string()))?;
        if !is_hash(&listing.sha) {
            return Err(Problem::UnexpectedResponse(format!(
                "commit {:?}",
                listing.sha
            )));
        }
        for file in &listing.siblings {
            let name = &file.rfilename;
            if !is_inside(name) {
                return Err(Problem::UnexpectedResponse(format!("file {name:?}")));
            }
            let sha256 = file.lfs.as_ref().and_then(|lfs| lfs.sha256.as_ref());
            for (field, text, n_digits) in [
                ("blobId", &file.blob_id, 40),
                ("sha256", &sha256.cloned(), 64),
            ] {
                if let Some(text) = text
                    && !(is_hash(text) && text.len() == n_digits)
                {
                    return Err(Problem::UnexpectedResponse(format!(
                        "file {name:?}: {field} {text:?}, expected {n_digits} hexadecimal digits"
                    )));
                }
            }
        }
        Ok(listing)
    }

    /// Returns the cached listing; without one, builds it from the snapshot that other programs
    /// downloaded.
    fn cached(cache: &RepoCache, commit: &str) -> Option<Listing> {
        if let Some(json) = cache::read(&cache.listing(commit), MAX_LISTING_BYTES) {
            return Listing::parse(&json).ok().filter(|l| l.sha == commit);
        }
        let snapshot = cache.snapshot(commit);
        let mut siblings = Vec::new();
        walk(&snapshot, "", &mut siblings).ok()?;
        Some(Listing {
            sha: commit.to_owned(),
            siblings,
        })
    }

    fn file(&self, name: &str) -> Option<&Sibling> {
        self.siblings.iter().find(|file| file.rfilename == name)
    }
}

/// Collects the files below a folder.
fn walk(folder: &Path, prefix: &str, out: &mut Vec<Sibling>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let name = format!("{prefix}{name}");
        let Ok(metadata) = fs::metadata(&path) else {
            // A dangling link.
            continue;
        };
        if metadata.is_dir() {
            walk(&path, &format!("{name}/"), out)?;
        } else {
            out.push(Sibling {
                rfilename: name,
                size: Some(metadata.len()),
                blob_id: None,
                lfs: None,
            });
        }
    }
    Ok(())
}

impl Sibling {
    fn size_bytes(&self) -> Option<u64> {
        self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size)
    }

    fn hash(&self) -> Option<Hash> {
        match &self.lfs {
            Some(lfs) => lfs.sha256.clone().map(Hash::Sha256),
            None => self.blob_id.clone().map(Hash::Git),
        }
    }
}

/// The range of one request.
struct Piece {
    file: Arc<RemoteFile>,
    range: Range<u64>,
}

/// A repository at one commit.
pub struct Repo {
    http: Arc<Http>,
    name: String,
    revision: String,
    listing: Listing,
    cache: RepoCache,
    /// Open files by name, so that each is opened once.
    open: Mutex<BTreeMap<String, Arc<RemoteFile>>>,
}

impl Repo {
    /// Returns the repository's name, `org/name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the requested revision.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns the commit of the revision.
    pub fn commit(&self) -> &str {
        &self.listing.sha
    }

    /// Returns the paths of all files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.listing.siblings.iter().map(|f| f.rfilename.as_str())
    }

    /// Returns the size of a file in bytes, if the hub lists it.
    pub fn size_bytes(&self, name: &str) -> Option<u64> {
        self.listing.file(name)?.size_bytes()
    }

    /// Returns size and hash of a file as far as the hub lists them; `None` if there is no such file.
    pub(crate) fn listed(&self, name: &str) -> Option<(Option<u64>, Option<Hash>)> {
        let file = self.listing.file(name)?;
        Some((file.size_bytes(), file.hash()))
    }

    /// Returns the folder in which [`Repo::fetch`] creates files.
    pub fn folder(&self) -> PathBuf {
        self.cache.snapshot(self.commit())
    }

    /// Returns the bytes received over the network so far, for all repositories of this hub.
    pub fn fetched_bytes(&self) -> u64 {
        self.http.fetched_bytes()
    }

    /// Returns the name of a file in messages.
    pub fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.subject(name))
    }

    fn subject(&self, name: &str) -> String {
        format!("{SCHEME}{}/{name}", self.name)
    }

    /// Returns the path of a whole file in the cache, and fetches it if it is missing; `None` if
    /// the repository has no such file.
    ///
    /// # Errors
    /// The file cannot be fetched, or does not have the hash that the hub lists.
    pub fn fetch(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        let cached = self.folder().join(name);
        if cached.is_file() {
            return Ok(Some(cached));
        }
        let Some(file) = self.listing.file(name) else {
            return Ok(None);
        };
        let subject = |problem: Problem| problem.of(self.subject(name));
        let target = self.target(file)?;
        if target.size_bytes > MAX_SMALL_BYTES {
            let size_bytes = target.size_bytes;
            let what = format!("{size_bytes} bytes, expected at most {MAX_SMALL_BYTES}");
            return Err(subject(Problem::UnexpectedResponse(what)));
        }
        let mut bytes = vec![0; target.size_bytes as usize];
        if !bytes.is_empty() {
            target.fetch(&self.http, 0..target.size_bytes, &mut |offset, part| {
                bytes[offset as usize..][..part.len()].copy_from_slice(part);
                Ok(())
            })?;
        }
        let store = || {
            let hash = file.hash();
            let kind = hash.clone().unwrap_or(Hash::Sha256(String::new()));
            let read = |offset: u64, out: &mut [u8]| {
                out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
                Ok(())
            };
            let found = kind.of(target.size_bytes, &read)?;
            let blob = found.clone();
            hash.map_or(Ok(()), |hash| hash.check(found))?;
            self.cache.store(&self.cache.blob(&blob), &bytes)?;
            self.cache.link(self.commit(), name, &blob)
        };
        store().map(Some).map_err(subject)
    }

    /// Opens a file that is fetched as far as it is read; `None` if the repository has no such
    /// file.
    ///
    /// # Errors
    /// The hub does not report the file's size, or the cache cannot be written.
    pub fn open(&self, name: &str) -> Result<Option<Arc<RemoteFile>>, Error> {
        let mut open = self.open.lock().expect("no holder of it panics");
        if let Some(file) = open.get(name) {
            return Ok(Some(Arc::clone(file)));
        }
        let Some(listed) = self.listing.file(name) else {
            return Ok(None);
        };
        let subject = |problem: Problem| problem.of(self.subject(name));
        let cached = self.folder().join(name);
        let hash = listed.hash();
        let (target, kept) = match cached.is_file() {
            true => {
                let (file, size_bytes) = remote::open(&cached).map_err(subject)?;
                (self.target_of(name, size_bytes), Kept::Whole(file))
            }
            false => {
                let target = self.target(listed)?;
                let key = match &hash {
                    Some(hash) => hash.text().to_owned(),
                    None => format!("{}-{}", self.commit(), escape(name, &[])),
                };
                let path = self.cache.blob(&format!("{key}.pieces"));
                let pieces = Pieces::open(&path, target.size_bytes).map_err(subject)?;
                (target, Kept::Pieces(pieces))
            }
        };
        let file = Arc::new(RemoteFile {
            name: name.to_owned(),
            path: self.path(name),
            http: Arc::clone(&self.http),
            target,
            hash,
            kept,
        });
        open.insert(name.to_owned(), Arc::clone(&file));
        Ok(Some(file))
    }

    /// Returns the number of bytes of these ranges that have to be fetched.
    ///
    /// # Errors
    /// See [`Repo::open`].
    pub fn missing_bytes(&self, wanted: &[(&str, Range<u64>)]) -> Result<u64, Error> {
        let missing = self.missing(wanted)?;
        Ok(missing
            .iter()
            .map(|piece| piece.range.end - piece.range.start)
            .sum())
    }

    /// Fetches ranges of files with several connections; calls `progress` with the number of bytes
    /// of each finished piece. Files that are then complete are checked and moved into the cache. A build with
    /// the feature `upload` fetches whole files from Xet storage, if they are there.
    ///
    /// # Errors
    /// A range cannot be fetched, or a complete file does not have the hash that the hub lists.
    pub fn prefetch(
        &self,
        wanted: &[(&str, Range<u64>)],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Error> {
        if xet::IS_AVAILABLE {
            self.fetch_from_xet(wanted, progress)?;
        }
        let pieces = self.missing(wanted)?;
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let work = || {
            while let Some(Piece { file, range }) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let n = range.end - range.start;
                match file.fetch(range.clone()) {
                    Ok(()) => progress(n),
                    Err(error) => {
                        next.store(pieces.len(), Ordering::Relaxed);
                        let mut failure = failure.lock().expect("no holder of it panics");
                        failure.get_or_insert(error);
                        return;
                    }
                }
            }
        };
        let n_threads = self.http.config().connections.clamp(1, pieces.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..n_threads {
                // If a thread cannot be started, fewer connections are used.
                if std::thread::Builder::new()
                    .spawn_scoped(scope, work)
                    .is_err()
                {
                    break;
                }
            }
            work();
        });
        if let Some(error) = failure.into_inner().expect("no holder of it panics") {
            return Err(error);
        }
        let names: std::collections::BTreeSet<_> = wanted.iter().map(|(name, _)| *name).collect();
        for name in names {
            if let Some(file) = self.open(name)? {
                file.settle(&self.cache)?;
            }
        }
        Ok(())
    }

    /// Fetches the files that are wanted from start to end and are in Xet storage.
    fn fetch_from_xet(
        &self,
        wanted: &[(&str, Range<u64>)],
        progress: &dyn Fn(u64),
    ) -> Result<(), Error> {
        for (name, range) in wanted {
            // Only large files have a SHA-256 in the listing, and only they are in Xet storage.
            let file = self.open(name)?.filter(|file| {
                *range == (0..file.size_bytes()) && matches!(file.hash, Some(Hash::Sha256(_)))
            });
            if let Some(file) = file {
                file.fetch_from_xet(&self.name, progress)?;
            }
        }
        Ok(())
    }

    /// Returns the missing parts of these ranges, cut to at most `piece_bytes` each.
    fn missing(&self, wanted: &[(&str, Range<u64>)]) -> Result<Vec<Piece>, Error> {
        // Adjacent tensors are fetched by one request.
        let mut by_file: BTreeMap<&str, RangeSet<u64>> = BTreeMap::new();
        for (name, range) in wanted.iter().filter(|(_, range)| !range.is_empty()) {
            by_file.entry(name).or_default().insert(range.clone());
        }
        let step = self.http.config().piece_bytes.max(1);
        let mut pieces = Vec::new();
        for (name, ranges) in by_file {
            let Some(file) = self.open(name)? else {
                continue;
            };
            let all = 0..file.size_bytes();
            for range in ranges.iter().flat_map(|range| {
                let inside = range.start.min(all.end)..range.end.min(all.end);
                file.missing(&inside)
            }) {
                let mut start = range.start;
                while start < range.end {
                    let end = range.end.min(start.saturating_add(step));
                    pieces.push(Piece {
                        file: Arc::clone(&file),
                        range: start..end,
                    });
                    start = end;
                }
            }
        }
        Ok(pieces)
    }

    /// Creates the download target of a file; asks for its size if the listing has none.
    fn target(&self, file: &Sibling) -> Result<Target, Error> {
        let name = &file.rfilename;
        let config = self.http.config();
        let mut target = self.target_of(name, file.size_bytes().unwrap_or(0));
        let offline_pieces = || {
            let hash = file.hash()?;
            let path = self.cache.blob(&format!("{}.pieces", hash.text()));
            path.is_file().then_some(())
        };
        if config.network == Network::Offline && offline_pieces().is_none() {
            let cache = self.cache.folder().to_path_buf();
            return Err(Problem::Offline { cache }.of(&target.subject));
        }
        if file.size_bytes().is_none() {
            target.size_bytes = self.ask_size(&target)?;
        }
        Ok(target)
    }

    fn target_of(&self, name: &str, size_bytes: u64) -> Target {
        let address = format!(
            "{}/{}/resolve/{}/{}",
            self.http.config().endpoint,
            self.name,
            self.commit(),
            escape(name, &['/'])
        );
        Target {
            subject: self.subject(name),
            address,
            commit: self.commit().to_owned(),
            size_bytes,
            tag: Mutex::default(),
        }
    }

    /// Asks for the first byte; the response's headers contain the size of the file.
    fn ask_size(&self, target: &Target) -> Result<u64, Error> {
        self.http.retry(&target.subject, || {
            let request = Request::File {
                commit: &target.commit,
            };
            let response = self.http.get(&target.address, Some(0..1), request)?;
            let header = match response.status {
                206 => text(&response.headers, "content-range").and_then(content_range),
                _ => text(&response.headers, "content-length")
                    .and_then(|text| text.parse().ok())
                    .map(|n| (0, n, n)),
            };
            let size = header.map(|(_, _, size_bytes)| size_bytes);
            size.ok_or_else(|| Problem::UnexpectedResponse("no size".to_owned()).into())
        })
    }
}
