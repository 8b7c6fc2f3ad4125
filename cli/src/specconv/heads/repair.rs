//! `specconv repair-mtp`: fixes the layout of an MTP head that another tool wrote wrongly.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use schemas::report::{RepairReport, SCHEMA_VERSION, Verdict};

use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::write::{FileLine, Model, WriteArgs};

/// Repair the layout of an MTP head
///
/// Repairs a sidecar whose head is in blk.0, a block count that excludes the head, a head that is
/// declared but missing, a head that is present but not declared, and per-layer arrays that are too
/// short. Tensor data is copied unmodified. A file without such a fault is not rewritten.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// Model with an inline head, or a sidecar
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: PathBuf,
    /// Number of trunk layers, for a sidecar whose keys do not state it
    #[arg(long, value_name = "N")]
    trunk_layers: Option<u32>,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let name = || args.input.display().to_string();
    let repaired = graft::repair_mtp(&input, args.trunk_layers).with_context(name)?;
    let faults: Vec<String> = repaired.faults.iter().map(ToString::to_string).collect();
    let output = if faults.is_empty() {
        None
    } else {
        let model = Model::sharded_like(repaired.plan, &args.input, &args.outfile)?;
        Some(args.write.write_one(model, &inputs)?)
    };
    let report = RepairReport {
        schema_version: SCHEMA_VERSION,
        input: name(),
        written: output.is_some() && !args.write.dry_run,
        faults,
        output,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let mut lines: Vec<String> = report
        .faults
        .iter()
        .map(|f| format!("fault: {f}"))
        .collect();
    lines.push(match &report.output {
        None => format!("{}: no fault found, nothing written", report.input),
        Some(file) => FileLine {
            file,
            written: report.written,
        }
        .to_string(),
    });
    output::result(args.write.format(), &report, &lines.join("\n"))?;
    Ok(Verdict::Pass)
}
