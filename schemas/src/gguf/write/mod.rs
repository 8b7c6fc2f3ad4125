//! The GGUF writer. Headers and offsets are final before any data is read, so worker threads can
//! write rows at their offsets in any order, memory is bounded, and the result does not depend on
//! the number of threads.
//!
//! Several files are published together: none gets its name before all are complete and on disk.

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
pub use journal::{HashedRange, Resume};
use journal::{Journal, Record};
pub use layout::{FileLayout, layout};
use partial::Partial;
use schedule::Chunk;

use super::plan::{Plan, PlanError, RowError, SourceError};
use super::read::ReadError;
use crate::outfile::{self, OutfileError, OutputNames};
use crate::threads;

/// Maximum bytes per chunk: large enough to hide system calls, small enough that a chunk is still
/// in the CPU's caches when it is written.
const CHUNK_BYTES: u64 = 4 << 20;

/// A file to write.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// Plan of the file.
    pub plan: &'a Plan,
    /// Path of the file.
    pub path: &'a Path,
}

/// Options of the writer.
#[derive(Clone, Copy)]
pub struct WriteConfig<'a> {
    /// Number of worker threads; 0 for one per core.
    pub threads: usize,
    /// Memory limit for the buffers of all threads, in bytes. A larger row is produced alone, so
    /// the actual limit is the larger of this and one row. Memory that a source uses to produce a
    /// row is not counted.
    pub max_buffer_bytes: u64,
    /// If set, a failed run keeps its finished chunks, and the next run continues from them.
    /// Without it, a failed run leaves no files.
    pub resume: Option<Resume<'a>>,
    /// Called from any thread with the number of bytes just written.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Called before every chunk; the run stops if it returns true.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl WriteConfig<'_> {
    /// One thread per core, 64 MiB of buffers, no resume, no callbacks.
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

/// Statistics of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteReport {
    /// Size of each file in bytes, in the order of the outputs.
    pub size_bytes: Vec<u64>,
    /// Bytes of tensor data that the kernel copied from file to file, without a user-space buffer.
    pub kernel_copied_bytes: u64,
    /// Bytes of these whose blocks are shared with the input: they took neither space nor time.
    pub shared_bytes: u64,
    /// Bytes of tensor data that were written from buffers or memory.
    pub produced_bytes: u64,
    /// Bytes of tensor data that were kept from an earlier run.
    pub resumed_bytes: u64,
    /// Maximum bytes of buffers in use.
    pub peak_buffer_bytes: u64,
}

/// Error of writing files. None of them was published.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file operation failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The output, or its folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A source cannot produce its rows.
    #[error(
        "{}tensor {tensor}: {source}{}",
        .input.as_ref().map(|(path, _)| format!("{}: ", path.display())).unwrap_or_default(),
        .input.as_ref().map(|(_, at)| format!(" (row at byte {at})")).unwrap_or_default(),
    )]
    Source {
        /// The input file, and the offset of the row that could not be produced; of the first
        /// requested row if the source does not report which.
        input: Option<(PathBuf, u64)>,
        /// Name of the tensor in the output.
        tensor: String,
        /// The cause.
        source: SourceError,
    },
    /// An input changed while it was read.
    #[error("{0}")]
    Input(#[from] ReadError),
    /// No reader would accept the plan.
    #[error("{}: {source}", .path.display())]
    Plan {
        /// The output.
        path: PathBuf,
        /// The cause.
        source: PlanError,
    },
    /// The name of an output is not allowed, or the output could not be published.
    #[error(transparent)]
    Outfile(#[from] OutfileError),
    /// The journal is of a run with other outputs, inputs or options.
    #[error(
        "{}: belongs to another run: recorded {found}, now {expected}; use the recorded options and inputs, or remove the file to start again", .path.display()
    )]
    OtherRun {
        /// The journal.
        path: PathBuf,
        /// The line found.
        found: String,
        /// The line that this run would write.
        expected: String,
    },
    /// The caller cancelled the run.
    #[error("interrupted before the output was complete")]
    Cancelled,
}

/// Computes the layouts of files that are written together.
///
/// # Errors
/// No reader would accept a plan, or the name of an output is not allowed.
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
/// A source fails, or a file operation fails.
pub fn write(outputs: &[Output<'_>], config: &WriteConfig<'_>) -> Result<WriteReport, WriteError> {
    stage(outputs, config)?.publish(Vec::new())
}

/// Complete files under hidden names. Unless [`Staged::publish`] is called, they are removed, or
/// kept for the next run with [`WriteConfig::resume`].
pub struct Staged {
    files: Vec<outfile::Partial>,
    journal: Option<Journal>,
    report: WriteReport,
}

impl Staged {
    /// Returns the hidden path of each output, in the order of the outputs.
    pub fn hidden(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(outfile::Partial::hidden)
    }

    /// Returns the hashes of the header and of the rows of each output, in the order of the outputs
    /// and of their bytes. All other bytes are zero. Only for runs with [`WriteConfig::resume`],
    /// which need the hashes.
    pub fn ranges(&self) -> Vec<Vec<HashedRange>> {
        let n_outputs = self.report.size_bytes.len();
        let journal = self.journal.as_ref();
        journal.map_or_else(Vec::new, |journal| journal.ranges(n_outputs))
    }

    /// Returns the size of each output in bytes.
    pub fn sizes(&self) -> &[u64] {
        &self.report.size_bytes
    }

    /// Gives all files their final names and replaces existing files, together with `others`, which
    /// must be complete, too. If this fails, nothing has changed.
    ///
    /// # Errors
    /// A file operation failed.
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

/// Writes complete files under hidden names in the folders of the outputs.
///
/// If several outputs are computed from the same input tensor, their rows are produced one after
/// another, so that the input is read from disk once.
///
/// # Errors
/// A source fails, or a file operation fails.
pub fn stage(outputs: &[Output<'_>], config: &WriteConfig<'_>) -> Result<Staged, WriteError> {
    let layouts = layouts(outputs)?;
    let paths: Vec<&Path> = outputs.iter().map(|output| output.path).collect();
    let journal = open_journal(outputs, &layouts, config)?;
    if journal.is_none() {
        outfile::check_space(&needs(outputs, &layouts))?;
    }
    let files = match &journal {
        Some(_) => outfile::Partial::keep_all(&paths)?,
        None => outfile::Partial::create_all(&paths)?,
    };
    fill(outputs, &layouts, files, journal, config)
}

/// Writes some rows of files that several processes write, each its own rows. `layouts` have the sizes
/// of the whole files, the offsets of the rows, and a header for the process that writes it.
///
/// The files have their names already, so [`Staged::publish`] only syncs them. They are kept if the run fails.
///
/// # Errors
/// A source fails, or a file operation fails.
pub fn stage_shared(
    outputs: &[Output<'_>],
    layouts: &[FileLayout],
    config: &WriteConfig<'_>,
) -> Result<Staged, WriteError> {
    let journal = open_journal(outputs, layouts, config)?;
    let files = outputs.iter();
    let files = files.map(|output| outfile::Partial::shared(output.path));
    let files = files.collect::<Result<_, _>>()?;
    fill(outputs, layouts, files, journal, config)
}

/// Opens the journal of a run that can be resumed, with its records.
fn open_journal(
    outputs: &[Output<'_>],
    layouts: &[FileLayout],
    config: &WriteConfig<'_>,
) -> Result<Option<(Journal, Vec<Record>)>, WriteError> {
    let resume = config.resume.filter(|_| !outputs.is_empty());
    let journal = resume.map(|resume| Journal::open(outputs, layouts, &resume));
    journal.transpose()
}

/// Writes the headers and rows of files.
fn fill(
    outputs: &[Output<'_>],
    layouts: &[FileLayout],
    files: Vec<outfile::Partial>,
    journal: Option<(Journal, Vec<Record>)>,
    config: &WriteConfig<'_>,
) -> Result<Staged, WriteError> {
    let (journal, records) = journal.unzip();
    let mut partials = Vec::with_capacity(outputs.len());
    for (i, (file, layout)) in files.into_iter().zip(layouts).enumerate() {
        partials.push(Partial::begin(file, layout)?);
        if let Some(journal) = &journal {
            journal.keep(
                i,
                0,
                layout.header.len() as u64,
                journal::hash(&layout.header),
            );
        }
        (config.progress)(layout.header.len() as u64);
    }
    let n_workers = threads::count(config.threads);
    let chunk_bytes = CHUNK_BYTES.min(config.max_buffer_bytes / n_workers as u64);
    let records = records.unwrap_or_default();
    let chunks = schedule::chunks(outputs, layouts, chunk_bytes, records);
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

/// Returns the space that each output needs.
fn needs<'a>(outputs: &[Output<'a>], layouts: &[FileLayout]) -> Vec<outfile::Need<'a>> {
    let files = outputs.iter().zip(layouts);
    let need = |(output, layout): (&Output<'a>, &FileLayout)| {
        let tensors = output.plan.tensors.iter();
        let copied = tensors.filter(|tensor| tensor.source.origin().is_some());
        let copied: u64 = copied.map(|tensor| tensor.size_bytes).sum();
        outfile::Need {
            path: output.path,
            written: layout.size_bytes.saturating_sub(copied),
            copied,
        }
    };
    files.map(need).collect()
}

/// State shared by the worker threads.
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
        // The failure of the earliest chunk is reported, so that the message does not depend on
        // timing if every chunk of a tensor fails.
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
        // A journal needs a hash of the bytes, so the kernel cannot copy them.
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
            // The kernel cannot copy, or the input was truncated, which the read below reports.
        }
        let in_memory = match origin {
            None => source.bytes(),
            // Mapped pages would stay in our memory after they are read.
            Some(_) => None,
        };
        if let Some(bytes) = in_memory {
            let bytes = &bytes[start as usize..(start + n_bytes) as usize];
            return self.put(chunk, bytes);
        }
        let _share = self.budget.take(n_bytes);
        buffer.resize(n_bytes as usize, 0);
        let written = self.produce(chunk, buffer);
        // The buffer of a long row must be freed when its share of the budget is released.
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
                if let Some(journal) = self.journal {
                    journal.keep(chunk.output, chunk.offset, n_bytes, recorded);
                }
                return Ok(());
            }
        }
        let read = chunk.tensor.source.read(chunk.rows.clone(), buffer);
        read.map_err(|source| source_error(chunk, source))?;
        self.put(chunk, buffer)
    }

    /// Writes bytes at the chunk's offset and records the chunk.
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
