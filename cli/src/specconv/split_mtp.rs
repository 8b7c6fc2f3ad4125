//! `specconv split-mtp`: a model becomes its body and its MTP head.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use schemas::gguf::Output;
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
    let mut inputs = Inputs::default();
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let split = graft::split_mtp(&input).with_context(|| args.input.display().to_string())?;
    let files = [(&split.body, &args.body), (&split.mtp, &args.mtp)];
    let files = files.map(|(plan, path)| Output { plan, path });
    let [body, mtp] = args.write.write(files, &inputs)?;
    let report = SplitReport {
        schema_version: SCHEMA_VERSION,
        input: args.input.display().to_string(),
        body,
        mtp,
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
