//! `specconv requantize-mtp`: converts the head of a model to another type.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use schemas::report::{RequantizeMtpReport, SCHEMA_VERSION, Verdict};

use super::HeadArgs;
use super::graft::head_size;
use super::head_types::convert_head_types;
use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::write::{FileLine, Model, WriteArgs};

/// Convert the MTP head of a model to another type
///
/// Only the head's weights change; all other tensors and all keys are kept.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// Model with an inline head, or a sidecar
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: PathBuf,
    #[command(flatten)]
    head: HeadArgs,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let name = || args.input.display().to_string();
    let (_, head_bytes_before) = head_size(&input).with_context(name)?;
    let converted = convert_head_types(&input, &args.head, None).with_context(name)?;
    let (_, head_bytes_after) = head_size(&converted)?;
    let model = Model::sharded_like(converted, &args.input, &args.outfile)?;
    let output = args.write.write_one(model, &inputs)?;
    let report = RequantizeMtpReport {
        schema_version: SCHEMA_VERSION,
        input: name(),
        head_bytes_before,
        head_bytes_after,
        output,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let text = format!(
        "{}\nhead {} -> {}",
        FileLine {
            file: &report.output,
            written: report.written,
        },
        output::bytes(head_bytes_before),
        output::bytes(head_bytes_after)
    );
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}
