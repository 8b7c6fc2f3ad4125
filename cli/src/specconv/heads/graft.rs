//! `specconv graft-mtp` and `replace-mtp`: add an MTP head to a model, or replace it.

use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use graft::{Embeddings, GraftConfig};
use schemas::gguf::Plan;
use schemas::report::{
    CopyReport, Finding, GraftReport, PairingOutcome, PairingReport, SCHEMA_VERSION, Verdict,
};

use super::head_types::convert_head_types;
use super::{HeadArgs, HeadEmbeddings};
use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::write::{FileLine, Model, WriteArgs, command_line};

/// The change to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::specconv) enum Surgery {
    /// Add a head to a model without one.
    Graft,
    /// Replace the existing head.
    Replace,
}

/// Add an MTP head to a model
///
/// The model's tensors are copied unmodified, whatever their types: a quantized body with a 16-bit head
/// works well. Before writing, head and body are compared: their keys, tokens, names, base models and
/// shared weights, and the values of the head. A compatible or plausible head is written; a plausible one
/// may belong to another fine-tune, so measure its acceptance rate. If the head is refused, nothing is
/// written and the exit code is 1.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// Model that receives the head: GGUF file, checkpoint folder, or hf://org/name
    ///
    /// For a split model, give the first shard
    #[arg(long, value_name = "BODY.gguf")]
    target: PathBuf,
    /// Source of the head: file, checkpoint folder, or hf://org/name
    ///
    /// A file is a sidecar, a model with an inline head, or a file with only the head's tensors. From the Hub, only
    /// the head is downloaded
    #[arg(long, value_name = "DONOR")]
    mtp: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: PathBuf,
    #[command(flatten)]
    head: HeadArgs,
    /// Embedding and output of the head: share, own or own:TYPE
    ///
    /// share uses the model's, own copies the donor's, and own:TYPE copies and converts them, such as own:q4_k
    /// [default: as in the donor]
    #[arg(long, value_name = "share|own[:TYPE]")]
    mtp_embeddings: Option<HeadEmbeddings>,
    /// Write the file even if the pair is refused
    ///
    /// The reasons are recorded in the file's key specconv.mtp.forced
    #[arg(long)]
    force: bool,
    /// Matrix type for a donor that is a checkpoint: f32, f16, bf16, q8_0, auto
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    outtype: OutType,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args, surgery: Surgery) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mut inputs = Inputs::new(&args.write);
    let mode = match surgery {
        Surgery::Graft => MtpMode::Without,
        Surgery::Replace => MtpMode::Inline,
    };
    let target = inputs.open(&args.target, OutType::Auto, mode)?;
    let donor = inputs.open(&args.mtp, args.outtype, MtpMode::Only)?;
    // The comparison reads the whole head, which is faster to download at once.
    inputs.prefetch(donor.tensors.iter().filter(|t| t.layer().is_some()))?;
    let context = || format!("{} onto {}", args.mtp.display(), args.target.display());
    let body = match surgery {
        Surgery::Graft => target.clone(),
        Surgery::Replace => graft::split_mtp(&target).with_context(context)?.body,
    };
    let pairing = graft::pair(&body, &donor).with_context(context)?;
    let is_refused = pairing.outcome == PairingOutcome::Refused;
    let mut report = GraftReport {
        schema_version: SCHEMA_VERSION,
        target: args.target.display().to_string(),
        donor: args.mtp.display().to_string(),
        forced: is_refused && args.force,
        n_grafted_tensors: 0,
        grafted_bytes: 0,
        copied: CopyReport::default(),
        output: None,
        written: false,
        verdict: Verdict::of(!is_refused || args.force),
        elapsed_ms: 0,
        pairing,
    };
    if report.verdict == Verdict::Pass {
        let config = GraftConfig {
            embeddings: match args.mtp_embeddings {
                None => Embeddings::Keep,
                Some(HeadEmbeddings::Share) => Embeddings::Share,
                Some(HeadEmbeddings::Own(_)) => Embeddings::Own,
            },
            forced: reasons(&report.pairing),
        };
        let joined = match surgery {
            Surgery::Graft => graft::graft_mtp(&target, &donor, &config),
            Surgery::Replace => graft::replace_mtp(&target, &donor, &config),
        };
        let joined = joined.with_context(context)?;
        let joined = convert_head_types(&joined, &args.head, args.mtp_embeddings)?;
        let (n_tensors, n_bytes) = head_size(&joined)?;
        report.n_grafted_tensors = n_tensors;
        report.grafted_bytes = n_bytes;
        let model = Model::sharded_like(joined, &args.target, &args.outfile)?;
        let written = args
            .write
            .write_all(vec![model], &inputs, &command_line())?;
        report.output = written.models.into_iter().next();
        report.copied = written.copied;
        report.written = !args.write.dry_run;
    } else {
        inputs.report_downloads();
    }
    report.elapsed_ms = start.elapsed().as_millis() as u64;
    output::result(args.write.format(), &report, &Text(&report))?;
    Ok(report.verdict)
}

/// Lists the reasons why the pair was refused, one sentence each.
fn reasons(pairing: &PairingReport) -> Vec<String> {
    let checks = pairing.checks.iter();
    let refused = checks.filter(|check| check.finding == Finding::Refuses);
    refused
        .map(|c| format!("{}: target {}, donor {}", c.subject, c.target, c.donor))
        .collect()
}

/// Returns the number of tensors of a file's head and the bytes of their data.
pub(super) fn head_size(plan: &Plan) -> anyhow::Result<(u64, u64)> {
    let head = graft::head_layers(plan)?;
    let in_head = plan.tensors.iter();
    let in_head = in_head.filter(|t| t.layer().is_some_and(|layer| head.contains(&layer)));
    Ok(in_head.fold((0, 0), |(n, bytes), t| (n + 1, bytes + t.size_bytes)))
}

struct Text<'a>(&'a GraftReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(f, "{}", PairingText(&report.pairing))?;
        let Some(file) = &report.output else {
            return write!(f, "nothing written (--force writes the file anyway)");
        };
        let written = report.written;
        writeln!(f, "{}", FileLine { file, written })?;
        let size = output::bytes(report.grafted_bytes);
        write!(f, "grafted {} tensors, {size}", report.n_grafted_tensors)?;
        let copied = &report.copied;
        match (copied.by_kernel_bytes, copied.shared_bytes) {
            (0, _) => Ok(()),
            (n, 0) => write!(f, "; {} copied by the kernel", output::bytes(n)),
            (n, shared) => write!(
                f,
                "; {} copied by the kernel, {} of it as blocks shared with the input",
                output::bytes(n),
                output::bytes(shared)
            ),
        }
    }
}

/// Text output of the outcome and its reasons.
struct PairingText<'a>(&'a PairingReport);

impl fmt::Display for PairingText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PairingReport {
            outcome,
            donor_block,
            target_block,
            checks,
            ..
        } = self.0;
        let outcome = match outcome {
            PairingOutcome::Compatible => "compatible",
            PairingOutcome::Plausible => {
                "plausible: the head may belong to another fine-tune; measure its acceptance rate \
                 with specrun verify"
            }
            PairingOutcome::Refused => "refused",
        };
        let same = checks.iter().filter(|c| c.finding == Finding::Same).count();
        write!(
            f,
            "pairing {outcome}\n  blk.{donor_block} of the donor becomes blk.{target_block}; \
             {same} of {} checks found no difference",
            checks.len()
        )?;
        for check in checks {
            let word = match check.finding {
                Finding::Same => continue,
                Finding::Unknown => "unknown",
                Finding::Differs => "differs",
                Finding::Refuses => "refused",
            };
            write!(
                f,
                "\n  {word}  {}: target {}, donor {}",
                check.subject, check.target, check.donor
            )?;
        }
        write!(f, "{}", HeadText(self.0))
    }
}

/// Text output of the head's own tensors, one line each.
struct HeadText<'a>(&'a PairingReport);

impl fmt::Display for HeadText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = &self.0.tensors;
        let width = tensors.iter().map(|t| t.tensor.len()).max().unwrap_or(0);
        for tensor in tensors {
            let values = match &tensor.values {
                None => "not decoded".to_owned(),
                Some(v) => format!("mean {:+.4}, rms {:.4}", v.mean, v.rms),
            };
            let name = &tensor.tensor;
            write!(f, "\n  {name:<width$}  {:<6} {values}", tensor.dtype)?;
        }
        Ok(())
    }
}
