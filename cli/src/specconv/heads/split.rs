//! `specconv split-mtp`: a model becomes its body and its MTP head.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use schemas::report::{SCHEMA_VERSION, SplitReport, Verdict};

use super::recode::recode_head;
use super::{HeadArgs, HeadEmbeddings};
use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::remote::is_remote;
use crate::specconv::write::{FileLine, Model, WriteArgs, default_path};

/// Cut the MTP head off a model
///
/// The body and the head are the files that `convert --no-mtp` and `convert --mtp` would have
/// written; tensor data is copied untouched, unless the head is asked for in another type.
/// `graft-mtp` puts the same file together again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: specconv split-mtp model.gguf --body body.gguf --mtp \
                        mtp-model.gguf --mtp-embeddings own:q4_k"
)]
pub(in crate::specconv) struct Args {
    /// Model with the head inline: a GGUF file, the first part of a split one, the folder of a
    /// checkpoint, or hf://org/name
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Where the model without the head goes; left out, it is not written
    #[arg(long, value_name = "BODY.gguf")]
    body: Option<PathBuf>,
    /// Where the head goes [default without --body: mtp- and the input's name, beside it]
    #[arg(long, value_name = "MTP.gguf")]
    mtp: Option<PathBuf>,
    #[command(flatten)]
    head: HeadArgs,
    /// Give the head's file the model's embedding and output as they are (share), or copies of
    /// its own in another type (own:q4_k)
    #[arg(long, value_name = "share|own[:TYPE]", default_value = "share")]
    mtp_embeddings: HeadEmbeddings,
    #[command(flatten)]
    write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mtp_path = match (&args.mtp, &args.body) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(default_sidecar(&args.input)),
    };
    let mut inputs = Inputs::default();
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let split = graft::split_mtp(&input).with_context(|| args.input.display().to_string())?;
    let mtp = recode_head(&split.mtp, &args.head, Some(args.mtp_embeddings))?;
    let body = args.body.as_ref();
    let body = body.map(|path| Model::like(split.body, &args.input, path));
    let mtp = mtp_path.map(|path| Model::one(mtp, &path));
    let write = &args.write;
    let (body, mtp) = match (body.transpose()?, mtp) {
        (Some(body), Some(mtp)) => {
            let [body, mtp] = write.write([body, mtp], &inputs)?;
            (Some(body), Some(mtp))
        }
        (Some(body), None) => (Some(write.write_one(body, &inputs)?), None),
        (None, Some(mtp)) => (None, Some(write.write_one(mtp, &inputs)?)),
        (None, None) => (None, None),
    };
    let report = SplitReport {
        schema_version: SCHEMA_VERSION,
        input: args.input.display().to_string(),
        body,
        mtp,
        written: !args.write.dry_run,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let files = report.body.iter().chain(&report.mtp).map(|file| {
        let written = report.written;
        FileLine { file, written }.to_string()
    });
    let text = files.collect::<Vec<_>>().join("\n");
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}

/// The peer's name for a sidecar: a prefix, so that it cannot be taken for the model.
fn default_sidecar(input: &Path) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let extension = match input.is_dir() || is_remote(input) {
        true => ".gguf",
        false => "",
    };
    default_path(input, &format!("mtp-{name}{extension}"))
}
