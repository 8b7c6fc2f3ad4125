//! `specconv split-mtp`: a model becomes its body and its MTP head.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use convert::{MtpMode, OutType};
use schemas::report::{SCHEMA_VERSION, SplitReport, Verdict};

use super::file::{Inputs, WriteArgs, Written};
use crate::output;

/// Cut the MTP head off a model
///
/// The body and the head are the files that `convert --no-mtp` and `convert --mtp` would have
/// written; tensor data is copied untouched. `graft-mtp` puts the same file together again.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Model with the head inline: a GGUF file, the first part of a split one, or the folder of
    /// a checkpoint
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Where the model without the head goes
    #[arg(long, value_name = "BODY.gguf")]
    body: PathBuf,
    /// Where the head goes
    #[arg(long, value_name = "MTP.gguf")]
    mtp: PathBuf,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    ensure!(
        place(&args.body) != place(&args.mtp),
        "{}: named for the body and for the head, expected two files",
        args.body.display()
    );
    let mut inputs = Inputs::default();
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let split = graft::split_mtp(&input).with_context(|| args.input.display().to_string())?;
    // Both or none: the second must not be refused once the first is written.
    inputs.check_output(&args.body)?;
    inputs.check_output(&args.mtp)?;
    let report = SplitReport {
        schema_version: SCHEMA_VERSION,
        input: args.input.display().to_string(),
        body: args.write.write(&split.body, &args.body, &inputs)?,
        mtp: args.write.write(&split.mtp, &args.mtp, &inputs)?,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let [body, mtp] = [&report.body, &report.mtp].map(|file| Written {
        file,
        written: report.written,
    });
    let text = format!("{body}\n{mtp}");
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}

/// Where a file would be, by whatever name its folder goes.
fn place(path: &Path) -> PathBuf {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    folder.join(path.file_name().unwrap_or_default())
}
