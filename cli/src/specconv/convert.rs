//! `specconv convert`: an HF checkpoint becomes a GGUF file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use convert::{ConvertConfig, MtpMode, OutType};
use schemas::arch::keys;
use schemas::gguf::ShardStyle;
use schemas::report::{ConvertReport, SCHEMA_VERSION, Verdict};

use super::file::{Inputs, ShardArgs, WriteArgs, Written, default_path, fill_template};
use super::file_type;
use crate::output;

/// Convert an HF checkpoint to GGUF
///
/// Reads config.json, the tokenizer and model*.safetensors from a folder, or from the Hub, where
/// only the bytes that the file needs are fetched. The file is the one that llama.cpp's
/// convert_hf_to_gguf.py writes, byte for byte.
///
/// Of the Hub: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE are respected.
/// `specconv convert --mtp hf://Qwen/Qwen3-Next-80B-A3B-Instruct` fetches the head alone.
///
/// An EAGLE-3 draft needs the folder of its target too:
/// specconv convert Model-EAGLE3 --target-model-dir Model -o eagle3.gguf
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder of the checkpoint, or hf://org/name[@revision]
    #[arg(
        value_name = "HF_DIR",
        required_unless_present = "print_supported_models"
    )]
    checkpoint: Option<PathBuf>,
    /// File to write, or the folder to put it in. {ftype} and {outtype} in the name stand for
    /// the type, {FTYPE} and {OUTTYPE} for the type in capitals [default: named after the model,
    /// in HF_DIR, or here if that is on the Hub]
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: Option<PathBuf>,
    /// Type of the matrices: f32, f16, bf16, q8_0, or auto for the 16-bit type nearest to the
    /// checkpoint's
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    outtype: OutType,
    /// Write only the MTP head, as a sidecar file; the default name begins with mtp-
    #[arg(long, conflicts_with = "no_mtp")]
    mtp: bool,
    /// Leave the MTP head out
    #[arg(long, visible_alias = "no-nextn")]
    no_mtp: bool,
    /// Take the tokenizer of another folder, where the checkpoint's own cannot be read or is
    /// known to be broken: --tokenizer-from Qwen3-8B, or hf://Qwen/Qwen3-8B
    #[arg(long, value_name = "DIR")]
    tokenizer_from: Option<PathBuf>,
    /// Folder of the target's checkpoint, or hf://org/name: an EAGLE-3 draft needs it, for its tokenizer and layers
    #[arg(long, value_name = "HF_DIR")]
    target_model_dir: Option<PathBuf>,
    /// List the model classes that can be converted, and do nothing else
    #[arg(long)]
    print_supported_models: bool,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    match &args.checkpoint {
        Some(checkpoint) if !args.print_supported_models => convert(args, checkpoint),
        _ => {
            let classes: Vec<_> = convert::supported_classes().collect();
            output::data(&(classes.join("\n") + "\n"))?;
            Ok(Verdict::Pass)
        }
    }
}

fn convert(args: &Args, checkpoint: &Path) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let (mtp, mtp_name) = match (args.mtp, args.no_mtp) {
        (true, _) => (MtpMode::Only, "only"),
        (_, true) => (MtpMode::Without, "without"),
        _ => (MtpMode::Inline, "inline"),
    };
    let mut inputs = Inputs::default();
    let converted = inputs.open_checkpoint(&ConvertConfig {
        checkpoint: checkpoint.to_owned(),
        remote: None,
        outtype: args.outtype,
        mtp,
        tokenizer_from: args.tokenizer_from.clone(),
        target: args.target_model_dir.clone(),
    })?;
    let metadata = &converted.plan.metadata;
    let ftype = file_type::of(metadata).unwrap_or_default();
    let path = match &args.outfile {
        None => default_path(checkpoint, &converted.default_name),
        Some(folder) if folder.is_dir() => folder.join(&converted.default_name),
        Some(file) => fill_template(file, &ftype),
    };
    let parts = args
        .shard
        .shard(&converted.plan, ShardStyle::Converter, None)?;
    let output = args.write.write_parts(&parts, &path, &inputs)?;
    let report = ConvertReport {
        schema_version: SCHEMA_VERSION,
        input: checkpoint.display().to_string(),
        architecture: metadata.need_str(keys::ARCHITECTURE)?.to_owned(),
        outtype: args.outtype.to_string(),
        mtp: mtp_name.to_owned(),
        output,
        source: inputs.sources().into_iter().next(),
        written: !args.write.dry_run,
        notes: converted.notes.iter().map(ToString::to_string).collect(),
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let text = Written {
        file: &report.output,
        written: report.written,
    };
    output::result(args.write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}
