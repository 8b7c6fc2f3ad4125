//! `specconv finish`: joins the parts of all shards.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use schemas::gguf::{self, Output, Plan, WriteConfig, WriteReport};
use schemas::outfile::{self, OutputNames, Partial};
use schemas::progress::{Task, Unit};
use schemas::report::{
    FinishReport, FinishedFile, SCHEMA_VERSION, Verdict, WorkContent, WorkOutput, WorkParts,
    WorkShard,
};
use schemas::work::{JoinError, Joined, PartFile, Slice, TensorShape, hash, join};
use schemas::{input, threads};

use super::part::{self, FINISHED, State};
use super::{ReadPlan, inputs, plan};
use crate::hint::Hinted;
use crate::interrupt;
use crate::output::{self, Format};
use crate::report_file::OverwriteArgs;
use crate::work::FinishedPart;

/// Join the parts of all shards of a plan
///
/// Checks every part against the plan first, and names those that are missing, wrong, stale or foreign. Models are
/// written as one machine writes them: files that the shards wrote together, and parts that are a whole file, get their
/// names without being copied. Rows of other parts are copied by the kernel, which shares their blocks on file systems
/// with reflinks. Sums of imatrix and kld are added in the order of the text, and the reports of verify become one;
/// their flags in the plan decide about outputs.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// The plan
    #[arg(value_name = "PLAN.json")]
    plan: PathBuf,
    /// Keep the parts of models, which are removed when the files are written
    #[arg(long)]
    keep_parts: bool,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    ///
    /// For measurements: --json of the planned command
    #[arg(long)]
    json: bool,
}

/// Number of bad parts that a message lists.
const N_LISTED: usize = 8;

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let read = ReadPlan::open(&args.plan)?;
    if let Some(measurement) = read.command.measurement() {
        check_parts(&read)?;
        let files = read.plan.shards.iter().flat_map(|shard| &shard.files);
        let parts = files.map(|file| {
            let path = read.file_path(&file.name);
            let plan = gguf::open_one(&path)?;
            Ok(FinishedPart { path, plan })
        });
        let parts: Vec<FinishedPart> = parts.collect::<anyhow::Result<_>>()?;
        return measurement.finish(&parts);
    }
    let mut report = match finished(&read) {
        Some(report) => FinishReport {
            kept: true,
            ..report
        },
        None => {
            check_parts(&read)?;
            write(args, &read)?
        }
    };
    report.elapsed_ms = start.elapsed().as_millis() as u64;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Checks all parts, and that there are no others.
///
/// # Errors
/// Names the parts that are missing or wrong, and files that do not belong to the plan.
fn check_parts(read: &ReadPlan) -> anyhow::Result<()> {
    let shards = &read.plan.shards;
    let states = interrupt::while_writing(|cancelled| {
        let state = |(): &mut (), shard: &WorkShard| Ok(part::state(read, shard, cancelled));
        let states: Result<Vec<State>, std::convert::Infallible> =
            threads::try_map(shards, || (), state);
        Ok(states.unwrap_or_else(|never| match never {}))
    })?;
    interrupt::after_writing()?;
    let mut problems = Vec::new();
    let mut to_run = Vec::new();
    for (shard, state) in shards.iter().zip(states) {
        let problem = match state {
            State::Right(_) => continue,
            State::Missing => "missing".to_owned(),
            State::Wrong(problem) => problem,
        };
        problems.push(format!("shard {}: {problem}", shard.shard));
        to_run.push(shard.shard);
    }
    let foreign = part::foreign(read);
    problems.extend(
        foreign
            .iter()
            .map(|name| format!("{name}: foreign, not part of the plan")),
    );
    if problems.is_empty() {
        return Ok(());
    }
    let plan = read.path.display();
    let n_more = problems.len().saturating_sub(N_LISTED);
    problems.truncate(N_LISTED);
    let more = match n_more {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    let message = format!("{plan}: {}{more}", problems.join("; "));
    let hint = match to_run.first() {
        Some(shard) => format!("run \"specconv run {plan} --shard {shard}\""),
        None => format!("remove foreign files from {}", read.folder().display()),
    };
    Err(Hinted::new(message, hint).into())
}

/// Returns true if the files of the plan were already written.
pub(super) fn is_finished(read: &ReadPlan) -> bool {
    finished(read).is_some()
}

/// Returns the report of an earlier run for the same plan, if its files exist unmodified.
fn finished(read: &ReadPlan) -> Option<FinishReport> {
    let path = read.folder().join(FINISHED);
    let bytes = input::read(&path, input::Kind::File, input::MAX_LIST).ok()?;
    let report: FinishReport = serde_json::from_slice(&bytes).ok()?;
    let is_there = |file: &FinishedFile| {
        fs::metadata(&file.path).is_ok_and(|found| {
            found.len() == file.size_bytes && inputs::modified_ns(&found) == file.modified_ns
        })
    };
    let is_same = report.plan_sha256 == read.sha256 && report.outputs.iter().all(is_there);
    is_same.then_some(report)
}

/// A part of an output.
struct OutputPart {
    path: PathBuf,
    plan: Plan,
    slices: Vec<Slice>,
}

/// Returns the parts of an output, in the order of the shards.
fn parts_of(read: &ReadPlan, index: usize) -> anyhow::Result<Vec<OutputPart>> {
    let mut parts = Vec::new();
    for file in read.plan.shards.iter().flat_map(|shard| &shard.files) {
        let WorkContent::Tensors { output, slices } = &file.content else {
            continue;
        };
        if *output as usize == index {
            let path = read.file_path(&file.name);
            parts.push(OutputPart {
                plan: gguf::open_one(&path)?,
                path,
                slices: (slices.iter())
                    .map(|slice| Slice {
                        tensor: slice.tensor as usize,
                        rows: slice.first_row..slice.first_row.saturating_add(slice.n_rows),
                    })
                    .collect(),
            });
        }
    }
    Ok(parts)
}

/// A joined output.
struct JoinedOutput<'a> {
    output: &'a WorkOutput,
    plan: Plan,
    /// The part that is the whole file, or the shared file.
    whole: Option<PathBuf>,
}

fn joined<'a>(
    read: &ReadPlan,
    index: usize,
    output: &'a WorkOutput,
) -> anyhow::Result<JoinedOutput<'a>> {
    let (plan, whole) = match read.plan.parts {
        WorkParts::Separate => join_parts(read, index, output)?,
        WorkParts::Shared => {
            let path = read.file_path(&plan::shared_name(index as u32));
            (gguf::open_one(&path)?, Some(path))
        }
    };
    let layout = gguf::layout(&plan).with_context(|| output.path.clone())?;
    let (header, size_bytes) = (hash(&layout.header), layout.size_bytes);
    ensure!(
        header == output.header_xxh3 && size_bytes == output.size_bytes,
        "{}: the parts make a header {header} and {size_bytes} bytes, expected {} and {}",
        output.path,
        output.header_xxh3,
        output.size_bytes
    );
    Ok(JoinedOutput {
        output,
        plan,
        whole,
    })
}

/// Joins the separate parts of an output; returns the path of a part that is the whole file.
fn join_parts(
    read: &ReadPlan,
    index: usize,
    output: &WorkOutput,
) -> anyhow::Result<(Plan, Option<PathBuf>)> {
    let mut parts = parts_of(read, index)?;
    let tensors = output.tensors.iter().map(|tensor| TensorShape {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
    });
    let tensors: Vec<TensorShape> = tensors.collect();
    let files: Vec<PartFile<'_>> = (parts.iter())
        .map(|part| PartFile {
            plan: &part.plan,
            slices: &part.slices,
        })
        .collect();
    let found = join(&tensors, &files).map_err(|error: JoinError| {
        let part = error.part().and_then(|i| parts.get(i));
        let path = part.map_or(Path::new(&output.path), |part| &part.path);
        anyhow::Error::from(error).context(path.display().to_string())
    })?;
    Ok(match found {
        Joined::Parts(plan) => (plan, None),
        Joined::Whole(i) => {
            let part = parts.swap_remove(i);
            (part.plan, Some(part.path))
        }
    })
}

/// Writes all outputs, together.
fn write(args: &Args, read: &ReadPlan) -> anyhow::Result<FinishReport> {
    let inputs = read.plan.inputs.iter().map(|input| &input.path);
    let mut names = OutputNames::new(inputs, args.overwrite.existing());
    for output in &read.plan.outputs {
        names.claim_file(Path::new(&output.path))?;
    }
    let outputs = read.plan.outputs.iter().enumerate();
    let joined = outputs.map(|(i, output)| joined(read, i, output));
    let joined: Vec<JoinedOutput<'_>> = joined.collect::<anyhow::Result<_>>()?;
    let report = interrupt::while_writing(|cancelled| publish(args, read, &joined, cancelled))?;
    drop(joined);
    if !args.keep_parts {
        part::remove(read).with_context(|| read.folder().display().to_string())?;
    }
    Ok(report)
}

fn publish(
    args: &Args,
    read: &ReadPlan,
    joined: &[JoinedOutput<'_>],
    cancelled: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<FinishReport> {
    let mut renamed = Vec::new();
    let mut copied = Vec::new();
    let mut renamed_bytes = 0;
    for file in joined {
        let path = Path::new(&file.output.path);
        // A kept part must not be another name of a file that can be edited in place.
        let whole = file.whole.as_ref().filter(|_| !args.keep_parts);
        let linked = whole.map(|part| Partial::linked(path, part)).transpose()?;
        match linked.flatten() {
            Some(partial) => {
                renamed_bytes += file.output.size_bytes;
                renamed.push(partial);
            }
            None => copied.push(Output {
                plan: &file.plan,
                path,
            }),
        }
    }
    let n_bytes = copied.iter().map(|output| output.plan.data_bytes()).sum();
    let task = Task::start("join", n_bytes, Unit::Bytes);
    let config = WriteConfig {
        progress: &|n| task.advance(n),
        cancelled,
        ..WriteConfig::new()
    };
    let staged = match copied.as_slice() {
        [] => None,
        copied => Some(gguf::stage(copied, &config)?),
    };
    let mut finished = Vec::new();
    {
        let hidden = staged.iter().flat_map(|staged| staged.hidden());
        let copied = copied.iter().map(|output| output.path).zip(hidden);
        let renamed = renamed
            .iter()
            .map(|partial| (partial.path(), partial.hidden()));
        for (path, hidden) in copied.chain(renamed) {
            let found = fs::metadata(hidden).with_context(|| path.display().to_string())?;
            finished.push(FinishedFile {
                path: crate::work::text(path)?,
                size_bytes: found.len(),
                modified_ns: inputs::modified_ns(&found),
            });
        }
    }
    let order = |file: &FinishedFile| joined.iter().position(|j| j.output.path == file.path);
    finished.sort_by_key(order);
    let mut report = FinishReport {
        schema_version: SCHEMA_VERSION,
        plan: read.path.display().to_string(),
        plan_sha256: read.sha256.clone(),
        outputs: finished,
        renamed_bytes,
        kernel_copied_bytes: 0,
        shared_bytes: 0,
        kept: false,
        elapsed_ms: 0,
    };
    let path = read.folder().join(FINISHED);
    let partial = Partial::create_one(&path)?;
    let json = serde_json::to_string_pretty(&report)? + "\n";
    let written = partial.file().write_all(json.as_bytes());
    written.with_context(|| path.display().to_string())?;
    renamed.push(partial);
    let WriteReport {
        kernel_copied_bytes,
        shared_bytes,
        ..
    } = match staged {
        Some(staged) => staged.publish(renamed)?,
        None => {
            outfile::publish(renamed)?;
            WriteReport::default()
        }
    };
    report.kernel_copied_bytes = kernel_copied_bytes;
    report.shared_bytes = shared_bytes;
    Ok(report)
}

struct Text<'a>(&'a FinishReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        for (i, file) in report.outputs.iter().enumerate() {
            let verb = if report.kept { "kept" } else { "wrote" };
            let size = output::bytes(file.size_bytes);
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{verb} {}: {size}", file.path)?;
        }
        match report.renamed_bytes {
            n if n > 0 && !report.kept => {
                write!(f, "\n{} of them without a copy", output::bytes(n))
            }
            _ => Ok(()),
        }
    }
}
