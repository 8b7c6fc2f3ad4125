//! `specconv graft-mtp`: an MTP head is grafted onto a model.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use schemas::gguf::Output;
use schemas::report::{GraftReport, SCHEMA_VERSION, Verdict};

use super::file::{Inputs, WriteArgs, Written};
use crate::output;

/// Graft an MTP head onto a model
///
/// Tensor data is copied untouched, whatever its type: a quantized body and a head of 16 bits
/// make a good pair. A head that was made for another model is refused with what differs.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Model that receives the head: a GGUF file, the first part of a split one, or the folder of
    /// a checkpoint
    #[arg(long, value_name = "BODY.gguf")]
    target: PathBuf,
    /// Where the head comes from: a sidecar, a model with the head inline, or the folder of a
    /// checkpoint
    #[arg(long, value_name = "DONOR")]
    mtp: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: PathBuf,
    /// Type of the head's matrices, where the donor is a checkpoint: f32, f16, bf16, q8_0, auto
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    outtype: OutType,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::default();
    let target = inputs.open(&args.target, OutType::Auto, MtpMode::Without)?;
    let donor = inputs.open(&args.mtp, args.outtype, MtpMode::Only)?;
    let grafted = graft::graft_mtp(&target, &donor)
        .with_context(|| format!("{} onto {}", args.mtp.display(), args.target.display()))?;
    let file = Output {
        plan: &grafted,
        path: &args.outfile,
    };
    let [output] = args.write.write([file], &inputs)?;
    let before: HashSet<&str> = target.tensors.iter().map(|t| t.name.as_str()).collect();
    let added = grafted.tensors.iter();
    let added: Vec<_> = added
        .filter(|t| !before.contains(t.name.as_str()))
        .collect();
    let report = GraftReport {
        schema_version: SCHEMA_VERSION,
        target: args.target.display().to_string(),
        donor: args.mtp.display().to_string(),
        n_grafted_tensors: added.len() as u64,
        grafted_bytes: added.iter().map(|tensor| tensor.size_bytes).sum(),
        output,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let text = format!(
        "{}\ngrafted {} tensors, {}",
        Written {
            file: &report.output,
            written: report.written,
        },
        report.n_grafted_tensors,
        output::bytes(report.grafted_bytes)
    );
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}
