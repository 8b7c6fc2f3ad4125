//! `specconv split`: a model is cut in parts.

use std::path::PathBuf;
use std::time::Instant;

use convert::{MtpMode, OutType};
use schemas::gguf::ShardStyle;
use schemas::report::{PartsReport, SCHEMA_VERSION, Verdict};

use super::input::Inputs;
use super::write::{FileLine, Model, ShardArgs, WriteArgs};
use crate::output;

/// Split a model in parts
///
/// The parts are those of llama-gguf-split, byte for byte, except that data stays aligned as the
/// model says. Every program that reads the model is given the first part; `merge` makes the same
/// file again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: specconv split --split-max-size 2G m.gguf parts/m")]
pub(super) struct Args {
    /// Model: a GGUF file, or the first part of one that is split already
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// What the names of the parts begin with: OUT-00001-of-0000N.gguf
    #[arg(value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    write: WriteArgs,
}

/// Most tensors in a part where nothing is said: the peer's default.
const MAX_TENSORS: usize = 128;

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::default();
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
