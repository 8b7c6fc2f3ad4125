//! Hashes of tensor data, as `llama-gguf-hash` computes them: of each tensor, and of the data of
//! all tensors without padding. Metadata is not hashed, so changed keys do not change a model's
//! hash.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use twox_hash::XxHash64;

use super::plan::{Plan, SourceError, Tensor};
use crate::progress::{Task, Unit};

/// Bytes per read.
const CHUNK_BYTES: u64 = 1 << 20;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256: detects deliberate changes.
    Sha256,
    /// XXH64 with seed 0: detects damage only.
    Xxh64,
}

impl Algorithm {
    /// All hash functions, the strongest first.
    pub const ALL: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Xxh64];

    /// Returns the name in manifests, as in llama.cpp.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Xxh64 => "xxh64",
        }
    }

    fn start(self) -> State {
        match self {
            Algorithm::Sha256 => State::Sha256(Box::default()),
            Algorithm::Xxh64 => State::Xxh64(XxHash64::with_seed(0)),
        }
    }
}

/// State of a hash computation.
enum State {
    Sha256(Box<Sha256>),
    Xxh64(XxHash64),
}

impl State {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            State::Sha256(state) => state.update(bytes),
            State::Xxh64(state) => std::hash::Hasher::write(state, bytes),
        }
    }

    /// Returns the hash in hexadecimal.
    fn finish(self) -> String {
        match self {
            State::Sha256(state) => {
                let digest = state.finalize();
                digest.iter().map(|byte| format!("{byte:02x}")).collect()
            }
            State::Xxh64(state) => format!("{:016x}", std::hash::Hasher::finish(&state)),
        }
    }
}

/// The hashes of a model, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// Hash of each tensor, in file order.
    pub tensors: Vec<String>,
    /// Hash of the data of all tensors.
    pub data: String,
}

/// Error of reading a tensor.
#[derive(Debug, thiserror::Error)]
#[error("tensor {tensor}: {source}")]
pub struct HashError {
    /// Name of the tensor.
    pub tensor: String,
    /// The cause.
    pub source: SourceError,
}

/// Hashes a model's data with `threads` threads, 0 for one per core. Stops when `cancelled`, called
/// before every read, returns true.
///
/// # Errors
/// A source fails, or the computation was cancelled.
pub fn hashes(
    plan: &Plan,
    algorithm: Algorithm,
    threads: usize,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Hashes, HashError> {
    let n_threads = crate::threads::count(threads);
    let label = plan
        .tensors
        .first()
        .and_then(|tensor| tensor.source.input(0));
    let label = label.map_or("hash".to_owned(), |at| {
        format!("hash {}", at.path.display())
    });
    // Every byte is hashed twice, as part of its tensor and of all data.
    let task = Task::start(&label, 2 * plan.data_bytes(), Unit::Bytes);
    // The hash of all data is sequential, so it is one job; it takes longest and is started first.
    let n_jobs = plan.tensors.len() + 1;
    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![String::new(); n_jobs]);
    let failure = Mutex::new(None);
    let work = || {
        let mut buffer = Vec::new();
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= n_jobs {
                return;
            }
            let tensors = match job.checked_sub(1) {
                None => plan.tensors.as_slice(),
                Some(i) => &plan.tensors[i..=i],
            };
            match hash_tensors(tensors, algorithm, &mut buffer, &task, cancelled) {
                Ok(hash) => found.lock().expect("no worker panics")[job] = hash,
                Err(error) => {
                    next.store(n_jobs, Ordering::Relaxed);
                    *failure.lock().expect("no worker panics") = Some(error);
                }
            }
        }
    };
    crate::threads::run(n_threads.min(n_jobs), work);
    if let Some(error) = failure.into_inner().expect("no worker panics") {
        return Err(error);
    }
    let mut found = found.into_inner().expect("no worker panics");
    let tensors = found.split_off(1);
    let data = found.remove(0);
    Ok(Hashes { tensors, data })
}

fn hash_tensors(
    tensors: &[Tensor],
    algorithm: Algorithm,
    buffer: &mut Vec<u8>,
    task: &Task,
    cancelled: &dyn Fn() -> bool,
) -> Result<String, HashError> {
    let mut state = algorithm.start();
    for tensor in tensors {
        let row_bytes = tensor.row_bytes();
        let step = (CHUNK_BYTES / row_bytes).max(1);
        let n_rows = tensor.n_rows();
        let mut row = 0;
        while row < n_rows {
            let rows = row..(row + step).min(n_rows);
            row = rows.end;
            buffer.resize(((rows.end - rows.start) * row_bytes) as usize, 0);
            let read = match cancelled() {
                true => Err(gave_up().into()),
                false => tensor.source.read(rows, buffer),
            };
            read.map_err(|source| HashError {
                tensor: tensor.name.clone(),
                source,
            })?;
            state.update(buffer);
            task.advance(buffer.len() as u64);
        }
    }
    Ok(state.finish())
}

/// Returns the SHA-256 of a file in hexadecimal, as `sha256sum` prints it. Stops when `cancelled`,
/// called before every read, returns true.
///
/// # Errors
/// The file cannot be read, or the computation was cancelled.
pub fn file_sha256(path: &Path, cancelled: &dyn Fn() -> bool) -> io::Result<String> {
    let mut file = crate::input::open(path)?;
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    let mut state = Algorithm::Sha256.start();
    let label = format!("hash {}", path.display());
    let task = Task::start(&label, file.metadata()?.len(), Unit::Bytes);
    loop {
        if cancelled() {
            return Err(gave_up());
        }
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(state.finish()),
            n => {
                state.update(&buffer[..n]);
                task.advance(n as u64);
            }
        }
    }
}

fn gave_up() -> io::Error {
    io::Error::other("interrupted")
}

/// Formats a line of a manifest: algorithm, hash, and `FILE:TENSOR`, or `FILE` for all data.
pub fn manifest_line(algorithm: Algorithm, hash: &str, file: &str, tensor: Option<&str>) -> String {
    let name = algorithm.name();
    match tensor {
        Some(tensor) => format!("{name:<8}  {hash}  {file}:{tensor}"),
        None => format!("{name:<8}  {hash}  {file}"),
    }
}

/// An entry of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The hash function.
    pub algorithm: Algorithm,
    /// Hash in hexadecimal.
    pub hash: String,
    /// `FILE:TENSOR` or `FILE`.
    pub name: String,
}

/// Parses a manifest; lines with unknown algorithms are skipped, as in llama.cpp.
pub fn parse_manifest(text: &str) -> Vec<ManifestEntry> {
    let entry = |line: &str| {
        let (algorithm, rest) = line.trim().split_once(char::is_whitespace)?;
        let (hash, name) = rest.trim_start().split_once(char::is_whitespace)?;
        Some(ManifestEntry {
            algorithm: Algorithm::ALL.into_iter().find(|a| a.name() == algorithm)?,
            hash: hash.to_owned(),
            name: name.trim().to_owned(),
        })
    };
    text.lines().filter_map(entry).collect()
}
