//! `specconv split-mtp`: splits a model into its body and its MTP head.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use schemas::report::{SCHEMA_VERSION, SplitReport, Verdict};

use super::head_types::convert_head_types;
use super::{HeadArgs, HeadEmbeddings};
use crate::output;
use crate::specconv::input::Inputs;
use crate::specconv::remote::is_remote;
use crate::specconv::write::{FileLine, Model, WriteArgs, default_path};

/// Split the MTP head off a model
///
/// The body and the head are identical to the files that `convert --no-mtp` and `convert --mtp` write.
/// Tensor data is copied unmodified, unless another type is requested for the head. `graft-mtp` restores
/// the original file.
#[derive(Debug, clap::Args)]
pub(in crate::specconv) struct Args {
    /// Model with an inline head: GGUF file, checkpoint folder, or hf://org/name
    ///
    /// For a split model, give the first shard
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Output file for the model without the head [default: not written]
    #[arg(long, value_name = "BODY.gguf")]
    body: Option<PathBuf>,
    /// Output file for the head
    ///
    /// [default without --body: the input's name with the prefix mtp-, in the same folder]
    #[arg(long, value_name = "MTP.gguf")]
    mtp: Option<PathBuf>,
    #[command(flatten)]
    head: HeadArgs,
    /// Embedding and output in the head's file: share or own:TYPE
    ///
    /// share keeps the model's unmodified; own:TYPE converts them, such as own:q4_k
    #[arg(long, value_name = "share|own[:TYPE]", default_value = "share")]
    mtp_embeddings: HeadEmbeddings,
    #[command(flatten)]
    pub(in crate::specconv) write: WriteArgs,
}

pub(in crate::specconv) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let mtp_path = match (&args.mtp, &args.body) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(default_sidecar(&args.input)),
    };
    let mut inputs = Inputs::new(&args.write);
    let input = inputs.open(&args.input, OutType::Auto, MtpMode::Inline)?;
    let split = graft::split_mtp(&input).with_context(|| args.input.display().to_string())?;
    let mtp = convert_head_types(&split.mtp, &args.head, Some(args.mtp_embeddings))?;
    let body = args.body.as_ref();
    let body = body.map(|path| Model::sharded_like(split.body, &args.input, path));
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

/// Returns llama.cpp's name for a sidecar: a prefix, so that it is not mistaken for the model.
fn default_sidecar(input: &Path) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let is_file = !input.is_dir() && !is_remote(input);
    let extension = if is_file { "" } else { ".gguf" };
    default_path(input, &format!("mtp-{name}{extension}"))
}
