//! Commands that several machines share: the traits that `specconv plan`, `run` and `finish` use.

use std::path::{Path, PathBuf};

use schemas::gguf::Plan;
use schemas::report::{Verdict, WorkContent, WorkKind, WorkOutput, WorkSource};

/// A command whose work can be divided among machines.
pub(crate) trait Divisible {
    /// The command.
    fn kind(&self) -> WorkKind;

    /// Opens the inputs.
    ///
    /// # Errors
    /// An input cannot be used, or an option does not allow a division.
    fn open(&self) -> anyhow::Result<Box<dyn Work + '_>>;
}

/// The work of a command, with its inputs opened.
pub(crate) trait Work {
    /// Describes the work for a number of shards.
    ///
    /// # Errors
    /// The work is impossible.
    fn describe(&self, n_shards: usize) -> anyhow::Result<Description>;

    /// Makes the files of one shard. The data of a model is computed when it is written, that of a measurement is
    /// measured here.
    ///
    /// # Errors
    /// The measurement failed, or data cannot be downloaded.
    fn parts(&self, contents: &[WorkContent]) -> anyhow::Result<Vec<Plan>>;
}

/// A command that measures: the parts of its shards are joined to a report or a matrix.
pub(crate) trait Measurement: Divisible {
    /// Joins the parts in the order of the work, and writes and prints the result.
    ///
    /// # Errors
    /// A part is not one of this measurement, or an output cannot be written.
    fn finish(&self, parts: &[FinishedPart]) -> anyhow::Result<Verdict>;
}

/// A file of a shard that was checked.
pub(crate) struct FinishedPart {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The file.
    pub(crate) plan: Plan,
}

/// Description of the work of a command.
pub(crate) struct Description {
    /// Files that are read, without those of the Hub.
    pub(crate) inputs: Vec<PathBuf>,
    /// Commits on the Hub that are read.
    pub(crate) sources: Vec<WorkSource>,
    /// Everything else that determines the result.
    pub(crate) options: String,
    /// Model files that are written.
    pub(crate) outputs: Vec<WorkOutput>,
    /// Their headers.
    pub(crate) headers: Vec<Vec<u8>>,
    /// Content of the files of each shard.
    pub(crate) shards: Vec<Vec<WorkContent>>,
}

/// Returns a path as text.
///
/// # Errors
/// It is not UTF-8, which JSON needs.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| anyhow::anyhow!("{}: not UTF-8, which a plan needs", path.display()))
}

/// Divides units of work among shards, in order: the numbers differ by at most one.
pub(crate) fn share(n_units: usize, shard: usize, n_shards: usize) -> std::ops::Range<usize> {
    let start = |shard: usize| n_units * shard / n_shards;
    start(shard)..start(shard + 1)
}
