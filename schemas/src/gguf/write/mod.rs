//! The one writer. Sizes come before data: headers and offsets are final before a source is asked
//! for a byte, so workers write their rows at their places in any order, memory stays bounded,
//! and the result does not depend on how many workers there are.
//!
//! Several files are written as one: none gets its name before all are whole and on disk.

mod budget;
mod copy;
mod edit;
mod journal;
mod layout;
mod partial;
mod schedule;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use budget::Budget;
pub use edit::Editor;
pub(super) use edit::recover;
use journal::Journal;
pub use journal::Resume;
pub use layout::{FileLayout, layout};
use partial::Partial;
use schedule::Chunk;

use super::plan::{Plan, PlanError, RowError, SourceError};
use super::read::ReadError;
use crate::outfile::{self, OutfileError, OutputNames};
use crate::threads;

/// Most bytes that a worker produces at a time: enough to hide system calls, and few enough that
/// a chunk is still in the processor's caches when it is written.
const CHUNK_BYTES: u64 = 4 << 20;

/// A file to be written.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// What it will be.
    pub plan: &'a Plan,
    /// Where.
    pub path: &'a Path,
}

/// How to write.
#[derive(Clone, Copy)]
pub struct WriteConfig<'a> {
    /// Workers; 0 for one a core.
    pub threads: usize,
    /// Bound on the buffers of all workers together. A row that is larger by itself is produced
    /// alone, so the bound is that or one row, whichever is more. What a source holds while it
    /// makes a row is not counted.
    pub max_buffer_bytes: u64,
    /// Keep what is finished if the run fails, and go on from what an earlier one kept; without
    /// it, a run that fails leaves nothing behind.
    pub resume: Option<Resume<'a>>,
    /// Called with the bytes just written, from any worker.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Asked before every chunk whether to give up.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl WriteConfig<'_> {
    /// One worker a core, 64 MiB of buffers, nothing kept, nobody who watches.
    pub fn new() -> WriteConfig<'static> {
        WriteConfig {
            threads: 0,
            max_buffer_bytes: 64 << 20,
            resume: None,
            progress: &|_| {},
            cancelled: &|| false,
        }
    }
}

impl Default for WriteConfig<'_> {
    fn default() -> Self {
        WriteConfig::new()
    }
}

/// What was written, and at what cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteReport {
    /// Bytes of each file, in the order of the outputs.
    pub size_bytes: Vec<u64>,
    /// Bytes of tensor data that the kernel copied from file to file, without a buffer of ours.
    pub kernel_copied_bytes: u64,
    /// Of these, bytes in blocks that the files share now: they took no room and no time.
    pub shared_bytes: u64,
    /// Bytes of tensor data that went through buffers, or came from memory.
    pub produced_bytes: u64,
    /// Bytes of tensor data that an earlier run had written.
    pub resumed_bytes: u64,
    /// Most bytes that buffers held at one time.
    pub peak_buffer_bytes: u64,
}

/// Files could not be written, and why. None of them is there.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The output, or the folder it goes to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A source could not produce its bytes.
    #[error(
        "{}tensor {tensor}: {source}{}",
        .input.as_ref().map(|(path, _)| format!("{}: ", path.display())).unwrap_or_default(),
        .input.as_ref().map(|(_, at)| format!(" (row at byte {at})")).unwrap_or_default(),
    )]
    Source {
        /// The input file, and where in it the row begins that could not be produced; the first
        /// row asked for, if the source did not say which.
        input: Option<(PathBuf, u64)>,
        /// The tensor's name in the output.
        tensor: String,
        /// Why.
        source: SourceError,
    },
    /// Another process wrote to an input.
    #[error("{0}")]
    Input(#[from] ReadError),
    /// The plan is one that no reader would take.
    #[error("{}: {source}", .path.display())]
    Plan {
        /// The output.
        path: PathBuf,
        /// Why.
        source: PlanError,
    },
    /// An output has a name that it cannot have, or could not be published.
    #[error(transparent)]
    Outfile(#[from] OutfileError),
    /// What an earlier run kept is of other outputs, inputs or options.
    #[error(
        "{}: is of another run: recorded {found}, now {expected}; go back to what was recorded, \
         or remove the file to start anew", .path.display()
    )]
    OtherRun {
        /// The journal.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What it would say of this run.
        expected: String,
    },
    /// The caller gave up.
    #[error("interrupted before the output was whole")]
    Cancelled,
}

/// Lays out files that are to be written together.
///
/// # Errors
/// A plan is one that no reader would take, or an output has a name that it cannot have.
pub fn layouts(outputs: &[Output<'_>]) -> Result<Vec<FileLayout>, WriteError> {
    let mut names = OutputNames::default();
    let mut lay_out = |output: &Output<'_>| {
        names.claim_file(output.path)?;
        layout(output.plan).map_err(|source| WriteError::Plan {
            path: output.path.to_path_buf(),
            source,
        })
    };
    outputs.iter().map(&mut lay_out).collect()
}

/// Writes files, all or none: [`stage`], then [`Staged::publish`].
///
/// # Errors
/// A source fails, or the operating system refuses.
pub fn write(outputs: &[Output<'_>], config: &WriteConfig<'_>) -> Result<WriteReport, WriteError> {
    stage(outputs, config)?.publish(Vec::new())
}

/// Complete files that do not have their names yet. Without [`Staged::publish`] they go away, or stay
/// hidden for the next run under [`WriteConfig::resume`].
pub struct Staged {
    files: Vec<outfile::Partial>,
    journal: Option<Journal>,
    report: WriteReport,
}

impl Staged {
    /// Where the bytes of each output are now, in the order of the outputs.
    pub fn hidden(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(outfile::Partial::hidden)
    }

    /// Gives all files their names, replacing what had them, together with `others`, which are complete
    /// too. If that fails, nothing has changed.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn publish(self, others: Vec<outfile::Partial>) -> Result<WriteReport, WriteError> {
        let mut files = self.files;
        files.extend(others);
        outfile::publish(files)?;
        if let Some(journal) = self.journal {
            journal.finish()?;
        }
        Ok(self.report)
    }
}

/// Writes files completely under hidden names beside their places.
///
/// Rows that several outputs make of one tensor of an input are produced one after the other, so
/// that the input is read from disk once.
///
/// # Errors
/// A source fails, or the operating system refuses.
pub fn stage(outputs: &[Output<'_>], config: &WriteConfig<'_>) -> Result<Staged, WriteError> {
    let layouts = layouts(outputs)?;
    let paths: Vec<&Path> = outputs.iter().map(|output| output.path).collect();
    let (journal, records) = match &config.resume {
        Some(resume) if !outputs.is_empty() => {
            let (journal, records) = Journal::open(outputs, &layouts, resume)?;
            (Some(journal), records)
        }
        _ => (None, Vec::new()),
    };
    let files = match &journal {
        Some(_) => outfile::Partial::keep_all(&paths)?,
        None => outfile::Partial::create_all(&paths)?,
    };
    let mut partials = Vec::with_capacity(outputs.len());
    for (file, layout) in files.into_iter().zip(&layouts) {
        partials.push(Partial::begin(file, layout)?);
        (config.progress)(layout.header.len() as u64);
    }
    let n_workers = threads::count(config.threads);
    let chunk_bytes = CHUNK_BYTES.min(config.max_buffer_bytes / n_workers as u64);
    let chunks = schedule::chunks(outputs, &layouts, chunk_bytes, records);
    let job = Job {
        partials: &partials,
        journal: journal.as_ref(),
        budget: Budget::new(config.max_buffer_bytes),
        config,
        kernel_copied_bytes: AtomicU64::new(0),
        shared_bytes: AtomicU64::new(0),
        produced_bytes: AtomicU64::new(0),
        resumed_bytes: AtomicU64::new(0),
    };
    job.run(&chunks, n_workers)?;
    for output in outputs {
        output.plan.check_unchanged()?;
    }
    let report = WriteReport {
        size_bytes: layouts.iter().map(|layout| layout.size_bytes).collect(),
        kernel_copied_bytes: job.kernel_copied_bytes.into_inner(),
        shared_bytes: job.shared_bytes.into_inner(),
        produced_bytes: job.produced_bytes.into_inner(),
        resumed_bytes: job.resumed_bytes.into_inner(),
        peak_buffer_bytes: job.budget.peak_bytes(),
    };
    Ok(Staged {
        files: partials.into_iter().map(Partial::into_file).collect(),
        journal,
        report,
    })
}

/// What the workers share.
struct Job<'a> {
    partials: &'a [Partial],
    journal: Option<&'a Journal>,
    budget: Budget,
    config: &'a WriteConfig<'a>,
    kernel_copied_bytes: AtomicU64,
    shared_bytes: AtomicU64,
    produced_bytes: AtomicU64,
    resumed_bytes: AtomicU64,
}

impl Job<'_> {
    fn run(&self, chunks: &[Chunk<'_>], n_workers: usize) -> Result<(), WriteError> {
        let next = AtomicUsize::new(0);
        // The failure of the earliest chunk wins, so that the message does not depend on timing
        // when one tensor is bad throughout.
        let failure: Mutex<Option<(usize, WriteError)>> = Mutex::new(None);
        let work = || {
            let mut buffer = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = chunks.get(i) else { return };
                let written = match (self.config.cancelled)() {
                    true => Err(WriteError::Cancelled),
                    false => self.write_chunk(chunk, &mut buffer),
                };
                if let Err(error) = written {
                    next.store(chunks.len(), Ordering::Relaxed);
                    let mut failure = failure
                        .lock()
                        .expect("no worker panics while it holds this");
                    if failure.as_ref().is_none_or(|&(first, _)| i < first) {
                        *failure = Some((i, error));
                    }
                    return;
                }
                self.partials[chunk.output].begin_writeback(chunk);
                (self.config.progress)(chunk.size_bytes());
            }
        };
        threads::run(n_workers.min(chunks.len()), work);
        match failure
            .into_inner()
            .expect("no worker panics while it holds this")
        {
            None => Ok(()),
            Some((_, error)) => Err(error),
        }
    }

    fn write_chunk(&self, chunk: &Chunk<'_>, buffer: &mut Vec<u8>) -> Result<(), WriteError> {
        let n_bytes = chunk.size_bytes();
        let start = chunk.rows.start * chunk.tensor.row_bytes();
        let source = &chunk.tensor.source;
        let origin = source.origin();
        // A journal needs the bytes' hash, so they have to pass through here.
        if let (Some(origin), None) = (origin, self.journal) {
            let partial = &self.partials[chunk.output];
            let copied = partial.copy_from(origin.file, origin.offset + start, chunk)?;
            self.kernel_copied_bytes
                .fetch_add(copied.n_bytes, Ordering::Relaxed);
            self.shared_bytes
                .fetch_add(copied.shared_bytes, Ordering::Relaxed);
            if copied.n_bytes == n_bytes {
                return Ok(());
            }
            // The kernel cannot, or the input has become shorter, which reading tells.
        }
        let in_memory = match origin {
            None => source.bytes(),
            // A mapped file would stay in our memory once it was touched.
            Some(_) => None,
        };
        if let Some(bytes) = in_memory {
            let bytes = &bytes[start as usize..(start + n_bytes) as usize];
            return self.put(chunk, bytes);
        }
        let _share = self.budget.take(n_bytes);
        buffer.resize(n_bytes as usize, 0);
        let written = self.produce(chunk, buffer);
        // A long row must not stay allocated when its share of the budget is given back.
        if n_bytes > CHUNK_BYTES {
            *buffer = Vec::new();
        }
        written
    }

    /// Fills `buffer` with the chunk's bytes and writes them, unless an earlier run did.
    fn produce(&self, chunk: &Chunk<'_>, buffer: &mut [u8]) -> Result<(), WriteError> {
        if let Some(recorded) = chunk.recorded {
            self.partials[chunk.output].read_at(buffer, chunk.offset)?;
            if journal::hash(buffer) == recorded {
                let n_bytes = buffer.len() as u64;
                self.resumed_bytes.fetch_add(n_bytes, Ordering::Relaxed);
                return Ok(());
            }
        }
        let read = chunk.tensor.source.read(chunk.rows.clone(), buffer);
        read.map_err(|source| source_error(chunk, source))?;
        self.put(chunk, buffer)
    }

    /// Writes bytes at their place, and records that they are there.
    fn put(&self, chunk: &Chunk<'_>, bytes: &[u8]) -> Result<(), WriteError> {
        self.partials[chunk.output].write_at(bytes, chunk.offset)?;
        let n_bytes = bytes.len() as u64;
        self.produced_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        match self.journal {
            Some(journal) => journal.record(chunk, bytes),
            None => Ok(()),
        }
    }
}

fn source_error(chunk: &Chunk<'_>, source: SourceError) -> WriteError {
    let row = source
        .downcast_ref::<RowError>()
        .map_or(chunk.rows.start, |error| error.row);
    let place = chunk.tensor.source.input(row);
    WriteError::Source {
        input: place.map(|place| (place.path.to_path_buf(), place.offset)),
        tensor: chunk.tensor.name.clone(),
        source,
    }
}
