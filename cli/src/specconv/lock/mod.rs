//! `specconv lock` and `specconv rebuild`: record how files were made, and make them again.

mod record;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use schemas::input;
use schemas::report::{LockFile, RebuildReport, SCHEMA_VERSION, Verdict};

pub(super) use self::record::{Lock, Recorder, hashed_inputs};
use self::record::{NotAsLocked, changed_inputs, differences};
use super::Cli;
use super::write::relevant_words;
use crate::flags;
use crate::output::{self, Format};
use crate::report_file::OverwriteArgs;

/// Run a command and record its files in a lock file
///
/// Runs COMMAND, which may be every command that writes models, and publishes a TOML file together with its
/// outputs: the arguments, the version of the program, the hashes of all inputs and outputs, and of a checkpoint
/// on the Hub the commit and the byte ranges that were read. "specconv rebuild" makes the same files again.
#[derive(Debug, clap::Args)]
#[command(override_usage = "specconv lock [-o <FILE>] <COMMAND> [ARGS]...")]
pub(super) struct LockArgs {
    /// Lock file to write
    #[arg(short, long, value_name = "FILE", default_value = "spec.lock")]
    outfile: PathBuf,
    /// Command of specconv with its arguments, such as: quantize in.gguf out.gguf Q4_K_M
    #[arg(value_name = "COMMAND", required = true, num_args = 1..)]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Make the files of a lock file again
///
/// Runs the command of the lock file in the current folder. With --locked, nothing is written if an input or an
/// output differs from the lock file; the differences are printed, and the exit code is 1. Checkpoints on the Hub
/// are then read at the recorded commit. Without --locked, the differences are printed and the lock file is updated.
#[derive(Debug, clap::Args)]
pub(super) struct RebuildArgs {
    /// Lock file, as written by specconv lock
    #[arg(value_name = "FILE", default_value = "spec.lock")]
    file: PathBuf,
    /// Write nothing if an input or an output differs from the lock file
    #[arg(long)]
    locked: bool,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run_lock(args: &LockArgs) -> anyhow::Result<Verdict> {
    let mut cli = parse(&args.command).unwrap_or_else(|error| flags::exit(&error));
    let command = text(relevant_words(args.command.iter().cloned()))?;
    let write = cli.command.write_args().with_context(|| {
        let name = &command[0];
        format!("{name} writes no models, expected a command such as convert or quantize")
    })?;
    ensure!(
        !write.dry_run,
        "--dry-run writes no files whose hashes could be recorded"
    );
    write.lock = Lock::Record {
        path: args.outfile.clone(),
        command,
        is_update: false,
    };
    super::run(&cli)
}

pub(super) fn run_rebuild(args: &RebuildArgs) -> anyhow::Result<Verdict> {
    let lock = read(&args.file)?;
    let words: Vec<OsString> = lock.command.iter().map(OsString::from).collect();
    let mut cli = parse(&words).map_err(|error| {
        let (message, _) = flags::describe(&error);
        anyhow!("{}: command: {message}", args.file.display())
    })?;
    let Some(write) = cli.command.write_args() else {
        let name = lock.command.first().map_or("", String::as_str);
        bail!(
            "{}: command {name:?} writes no models, expected a command such as convert or quantize",
            args.file.display()
        );
    };
    write.overwrite = args.overwrite;
    write.lock = match args.locked {
        true => Lock::Require(lock.clone()),
        false => Lock::Record {
            path: args.file.clone(),
            command: lock.command.clone(),
            is_update: true,
        },
    };
    let changed = changed_inputs(&lock)?;
    let rebuilt = match args.locked && !changed.is_empty() {
        true => Err(NotAsLocked(changed).into()),
        false => super::run(&cli),
    };
    let (differences, outputs) = match rebuilt {
        // A command that refuses to write, such as graft-mtp with a head that does not fit.
        Ok(Verdict::Fail) => return Ok(Verdict::Fail),
        Ok(Verdict::Pass) if args.locked => (Vec::new(), lock.outputs.clone()),
        Ok(Verdict::Pass) => {
            let updated = read(&args.file)?;
            (differences(&lock, &updated), updated.outputs)
        }
        Err(error) => (error.downcast::<NotAsLocked>()?.0, Vec::new()),
    };
    let report = RebuildReport {
        schema_version: SCHEMA_VERSION,
        lock: args.file.display().to_string(),
        locked: args.locked,
        command: lock.command,
        verdict: Verdict::of(differences.is_empty() || !args.locked),
        differences,
        outputs,
    };
    output::result(Format::of(args.json), &report, &report_text(&report))?;
    Ok(report.verdict)
}

/// Lists the differences and the files, and the verdict on the last line.
fn report_text(report: &RebuildReport) -> String {
    let mut lines = report.differences.clone();
    let outputs = report.outputs.iter();
    lines.extend(outputs.map(|output| format!("wrote {}: sha256 {}", output.path, output.sha256)));
    let lock = &report.lock;
    lines.push(match (report.verdict, report.differences.is_empty()) {
        (Verdict::Fail, _) => format!("FAIL: nothing was written, {lock} cannot be rebuilt"),
        (Verdict::Pass, true) => format!("PASS: the files are those of {lock}"),
        (Verdict::Pass, false) => format!("PASS: {lock} was updated"),
    });
    lines.join("\n")
}

/// Parses a command of specconv. It prints as much as this command.
fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    let verbosity = match (output::is_quiet(), output::is_verbose()) {
        (true, _) => Some("--quiet"),
        (_, true) => Some("--verbose"),
        _ => None,
    };
    let words = words.iter().cloned();
    let words = words.chain(verbosity.map(OsString::from));
    Cli::parse_args(std::iter::once("specconv".into()).chain(words))
}

/// Reads a lock file; errors state line and column.
fn read(path: &Path) -> anyhow::Result<LockFile> {
    let shown = || path.display().to_string();
    let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST).with_context(shown)?;
    let lock: LockFile = toml::from_str(&text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let (line, column) = input::line_and_column(&text, span.start);
        let reason = error.message().replace('\n', ", ");
        anyhow!("{}:{line}:{column}: {reason}", path.display())
    })?;
    ensure!(
        lock.version == LockFile::VERSION,
        "{}: version {}, expected {}",
        path.display(),
        lock.version,
        LockFile::VERSION
    );
    Ok(lock)
}

/// Converts arguments to text, which a lock file can hold.
fn text(words: Vec<OsString>) -> anyhow::Result<Vec<String>> {
    let word = |word: OsString| {
        word.into_string()
            .map_err(|word| anyhow!("argument {:?} is not UTF-8", word.display().to_string()))
    };
    words.into_iter().map(word).collect()
}
