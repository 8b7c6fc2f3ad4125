//! `specconv run`: does the work of one shard.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use schemas::gguf::{self, FileLayout, Output, Resume, Staged, WriteConfig, WriteError};
use schemas::outfile::{self, Partial};
use schemas::progress::{Task, Unit};
use schemas::report::{RunReport, SCHEMA_VERSION, Verdict, WorkParts, WorkPlan, WorkShard};

use super::part::{self, State};
use super::{ReadPlan, finish, inputs, plan};
use crate::hint::Hinted;
use crate::interrupt;
use crate::output::{self, Format};
use crate::work::Description;

/// Do the work of one shard of a plan
///
/// Checks that inputs and options are those of the plan, and writes the part of the shard to PLAN.json.parts, complete
/// or not at all. An interrupted shard continues where it stopped. If the part is already right, nothing is done; so
/// a shard can be run again at any time, also twice at once.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// The plan
    #[arg(value_name = "PLAN.json")]
    plan: PathBuf,
    /// Number of the shard, from 0
    #[arg(long, value_name = "N")]
    shard: u32,
    /// Number of threads that convert or quantize; 0 for one per core
    ///
    /// The result does not depend on it
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let read = ReadPlan::open(&args.plan)?;
    let shown = args.plan.display();
    let n_shards = read.plan.shards.len();
    let shard = read.plan.shards.get(args.shard as usize);
    let shard = shard.ok_or_else(|| {
        let message = format!("{shown}: no shard {}", args.shard);
        Hinted::new(
            message,
            format!("shards are numbered from 0 to {}", n_shards - 1),
        )
    })?;
    let mut report = RunReport {
        schema_version: SCHEMA_VERSION,
        plan: shown.to_string(),
        shard: shard.shard,
        kept: true,
        size_bytes: 0,
        resumed_bytes: 0,
        elapsed_ms: 0,
    };
    if !finish::is_finished(&read) {
        let folder = read.folder();
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        check_folder(&read, &folder)?;
        let manifest = part::manifest_path(&folder, shard.shard);
        let waiting = || {
            output::note(&format_args!(
                "another run does shard {}; waiting for it",
                shard.shard
            ));
        };
        let _lock = outfile::lock_beside(&manifest, &waiting)
            .with_context(|| manifest.display().to_string())?;
        match part::state(&read, shard, &|| false) {
            State::Right(size_bytes) => report.size_bytes = size_bytes,
            State::Missing | State::Wrong(_) => {
                report.kept = false;
                (report.size_bytes, report.resumed_bytes) = make(args, &read, shard)?;
            }
        }
    }
    report.elapsed_ms = start.elapsed().as_millis() as u64;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Checks that the file system allows the form of parts, unless a flag chose it.
fn check_folder(read: &ReadPlan, folder: &Path) -> anyhow::Result<()> {
    let is_shared = read.plan.parts == WorkParts::Shared;
    if !is_shared || read.has_form || outfile::is_local(folder) {
        return Ok(());
    }
    let message = format!(
        "{}: parts are shared, expected a local file system",
        folder.display()
    );
    let hint = "plan again with --parts separate; --parts shared writes them anyway";
    Err(Hinted::new(message, hint).into())
}

/// Makes the part of a shard; returns its size, and the bytes that an interrupted run had written.
fn make(args: &Args, read: &ReadPlan, shard: &WorkShard) -> anyhow::Result<(u64, u64)> {
    inputs::check(&read.plan, &read.path)?;
    let work = read.command.divisible().open()?;
    let description = work.describe(read.plan.shards.len())?;
    check(&read.plan, &description, &read.path)?;
    let contents: Vec<_> = shard
        .files
        .iter()
        .map(|file| file.content.clone())
        .collect();
    let plans = match contents.as_slice() {
        [] => Vec::new(),
        contents => work.parts(contents)?,
    };
    ensure!(
        plans.len() == shard.files.len(),
        "shard {}: {} files, expected {}",
        shard.shard,
        plans.len(),
        shard.files.len()
    );
    let files = shard.files.iter();
    let paths: Vec<PathBuf> = files.map(|file| read.file_path(&file.name)).collect();
    let outputs = plans.iter().zip(&paths);
    let outputs: Vec<Output<'_>> = outputs.map(|(plan, path)| Output { plan, path }).collect();
    let files = Files {
        outputs: &outputs,
        shared: (read.plan.parts == WorkParts::Shared)
            .then(|| part::shared_layouts(&read.plan, shard, &description.headers)),
    };
    let written =
        interrupt::while_writing(|cancelled| write(args.threads, read, shard, &files, cancelled));
    match written {
        Ok(done) => Ok(done),
        // Where the file system has no locks, another run may have published the same bytes meanwhile.
        Err(error) => match part::state(read, shard, &|| false) {
            State::Right(size_bytes) => Ok((size_bytes, 0)),
            _ => Err(error),
        },
    }
}

/// Checks that the work is the planned one.
fn check(plan: &WorkPlan, found: &Description, path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let differs = |what: String| -> anyhow::Error {
        let hint = "plan again with the present options and inputs";
        Hinted::new(format!("{shown}: {what}"), hint).into()
    };
    for (found, expected) in found.sources.iter().zip(&plan.sources) {
        if found != expected {
            let message = format!(
                "{shown}: commit {} of hf://{}, expected {}",
                found.commit, found.repository, expected.commit
            );
            let hint = format!(
                "name the commit when planning: hf://{}@{}",
                expected.repository, expected.commit
            );
            return Err(Hinted::new(message, hint).into());
        }
    }
    if found.options != plan.options {
        let (found, expected) = (&found.options, &plan.options);
        return Err(differs(format!("options {found}, expected {expected}")));
    }
    if let Some((found, expected)) = (found.outputs.iter().zip(&plan.outputs)).find(|(a, b)| a != b)
    {
        let what = format!(
            "{}: header {} and {} bytes, expected {} and {}",
            expected.path,
            found.header_xxh3,
            found.size_bytes,
            expected.header_xxh3,
            expected.size_bytes
        );
        return Err(differs(what));
    }
    let is_same = found.sources.len() == plan.sources.len()
        && found.outputs.len() == plan.outputs.len()
        && plan::shards(found, plan.parts) == plan.shards;
    match is_same {
        true => Ok(()),
        false => Err(differs("the work is divided in another way".to_owned())),
    }
}

/// Files of a part.
struct Files<'a> {
    outputs: &'a [Output<'a>],
    /// Layouts of shared files, with the offsets of the rows.
    shared: Option<Vec<FileLayout>>,
}

/// Writes and publishes the files of a part with its manifest.
fn write(
    threads: usize,
    read: &ReadPlan,
    shard: &WorkShard,
    files: &Files<'_>,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<(u64, u64)> {
    let outputs = files.outputs.iter();
    let n_bytes = outputs.map(|output| output.plan.data_bytes()).sum();
    let task = Task::start(&format!("shard {}", shard.shard), n_bytes, Unit::Bytes);
    // The inputs were compared with the plan: their paths may differ between machines.
    let options = format!("plan {} shard {}", read.sha256, shard.shard);
    let path = part::manifest_path(&read.folder(), shard.shard);
    let journal = outfile::beside(&path, "journal");
    let config = WriteConfig {
        threads,
        resume: Some(Resume {
            inputs: &[],
            journal: Some(&journal),
            options: &options,
        }),
        progress: &|n| task.advance(n),
        cancelled,
        ..WriteConfig::new()
    };
    let staged = stage(files, &config, &journal)?;
    let manifest = part::manifest(read, shard, staged.as_ref());
    let size_bytes = part::size_bytes(&manifest);
    let partial = Partial::create_one(&path)?;
    let json = serde_json::to_string(&manifest)? + "\n";
    let written = partial.file().write_all(json.as_bytes());
    written.with_context(|| path.display().to_string())?;
    let resumed_bytes = match staged {
        Some(staged) => staged.publish(vec![partial])?.resumed_bytes,
        None => {
            outfile::publish(vec![partial])?;
            0
        }
    };
    Ok((size_bytes, resumed_bytes))
}

/// Writes files under hidden names; starts again if an interrupted run of another plan left its journal. `None` if
/// there are no files.
fn stage(
    files: &Files<'_>,
    config: &WriteConfig<'_>,
    journal: &Path,
) -> anyhow::Result<Option<Staged>> {
    let outputs = files.outputs;
    if outputs.is_empty() {
        return Ok(None);
    }
    let stage = || match &files.shared {
        Some(layouts) => gguf::stage_shared(outputs, layouts, config),
        None => gguf::stage(outputs, config),
    };
    let staged = stage().or_else(|error| match error {
        WriteError::OtherRun { .. } => {
            fs::remove_file(journal).map_err(|source| WriteError::Io {
                path: journal.to_path_buf(),
                source,
            })?;
            stage()
        }
        error => Err(error),
    });
    Ok(Some(staged?))
}

struct Text<'a>(&'a RunReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let size = output::bytes(report.size_bytes);
        match report.kept {
            true => write!(f, "shard {}: already done", report.shard),
            false => write!(f, "shard {}: wrote {size}", report.shard),
        }?;
        match report.resumed_bytes {
            0 => Ok(()),
            n => write!(f, ", {} of them before an interruption", output::bytes(n)),
        }
    }
}
