//! `specconv split`: splits a model into shards.

use std::path::PathBuf;
use std::time::Instant;

use convert::{MtpMode, OutType};
use schemas::gguf::ShardStyle;
use schemas::report::{PartsReport, SCHEMA_VERSION, Verdict};

use super::input::Inputs;
use super::write::{FileLine, Model, ShardArgs, WriteArgs};
use crate::output;

/// Split a model into shards
///
/// The shards are byte-identical to those of llama-gguf-split, except that data keeps the model's
/// alignment. Programs that read the model are given the first shard; `merge` restores the original
/// file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Model: GGUF file, or first shard of a split model
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Prefix of the shard names: OUT-00001-of-0000N.gguf
    #[arg(value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    pub(super) write: WriteArgs,
}

/// Default maximum number of tensors per shard, as in llama-gguf-split.
const MAX_TENSORS: usize = 128;

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let parts = args
        .shard
        .shard(&input, ShardStyle::SplitTool, Some(MAX_TENSORS))?;
    let report = PartsReport {
        schema_version: SCHEMA_VERSION,
        input: args.input.display().to_string(),
        output: args
            .write
            .write_one(Model::parts(parts, &args.output), &inputs)?,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let text = FileLine {
        file: &report.output,
        written: report.written,
    };
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}
