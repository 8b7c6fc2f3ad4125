//! `specconv merge`: merges the shards of a model into one file.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use convert::{MtpMode, OutType};
use schemas::gguf::{self, SPLIT_COUNT};
use schemas::report::{MergeReport, SCHEMA_VERSION, Verdict};

use super::input::Inputs;
use super::write::{FileLine, Model, WriteArgs};
use crate::output;

/// Merge the shards of a model into one file
///
/// All shards must exist and belong to the same model. The keys that describe the split are omitted.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// First shard
    #[arg(value_name = "IN-00001-of-0000N.gguf")]
    input: PathBuf,
    /// File to write
    #[arg(value_name = "OUT.gguf")]
    output: PathBuf,
    /// Delete the shards after the merged file is on disk
    #[arg(long)]
    delete_splits: bool,
    #[command(flatten)]
    pub(super) write: WriteArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let first = gguf::open_one(&args.input)?;
    ensure!(
        first.metadata.u32(SPLIT_COUNT)?.unwrap_or(0) > 0,
        "{}: not split, expected the first shard of a split model",
        args.input.display()
    );
    let parts = gguf::part_paths(&args.input)?;
    let model = Model::one(input, &args.output);
    let output = args.write.write_one(model, &inputs)?;
    let delete = args.delete_splits && !args.write.dry_run;
    for part in parts.iter().filter(|_| delete) {
        fs::remove_file(part).with_context(|| part.display().to_string())?;
    }
    let report = MergeReport {
        schema_version: SCHEMA_VERSION,
        inputs: parts.iter().map(|p| p.display().to_string()).collect(),
        output,
        written: !args.write.dry_run,
        deleted: delete,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let text = FileLine {
        file: &report.output,
        written: report.written,
    };
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}
