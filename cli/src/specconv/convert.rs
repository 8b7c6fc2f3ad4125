//! `specconv convert`: converts an HF checkpoint to a GGUF file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, ensure};
use convert::{ConvertConfig, Converted, MtpMode, OutType};
use quantize::{FType, QuantizeConfig};
use schemas::arch::keys;
use schemas::gguf::{Plan, ShardStyle};
use schemas::report::{ConvertReport, FileReport, SCHEMA_VERSION, Verdict};

use super::file_type;
use super::input::Inputs;
use super::quantize::notes as quantize_notes;
use super::write::{
    FileLine, Model, ShardArgs, WriteArgs, command_line, default_path, fill_template,
};
use crate::output;

/// Convert an HF checkpoint to GGUF
///
/// Reads config.json, the tokenizer and model*.safetensors from a folder, or from the Hub, where only
/// the bytes that the file needs are downloaded. The result is byte-identical to that of llama.cpp's
/// convert_hf_to_gguf.py.
///
/// For the Hub, HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE are respected. `specconv
/// convert --mtp hf://Qwen/Qwen3-Next-80B-A3B-Instruct` downloads only the head.
///
/// An EAGLE-3 draft also needs the folder of its target:
/// specconv convert Model-EAGLE3 --target-model-dir Model -o eagle3.gguf
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Checkpoint folder, or hf://org/name[@revision]
    #[arg(
        value_name = "HF_DIR",
        required_unless_present = "print_supported_models"
    )]
    checkpoint: Option<PathBuf>,
    /// File to write, or folder to write it to. {ftype} and {outtype} in the name are replaced by the
    /// type, {FTYPE} and {OUTTYPE} by the type in capitals [default: named after the model, in HF_DIR,
    /// or in the current folder for a checkpoint on the Hub]
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: Option<PathBuf>,
    /// Type of the matrices: f32, f16, bf16, q8_0, or auto (the 16-bit type closest to the
    /// checkpoint's). A type of quantize, such as q4_k_m, quantizes in the same pass. Several types,
    /// separated by commas, write one file each
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "auto",
        value_delimiter = ','
    )]
    outtype: Vec<FileType>,
    /// Write only the MTP head, as a sidecar; the default file name begins with mtp-
    #[arg(long, conflicts_with = "no_mtp")]
    mtp: bool,
    /// Omit the MTP head
    #[arg(long, visible_alias = "no-nextn")]
    no_mtp: bool,
    /// Use the tokenizer of another folder, if the checkpoint's own is unreadable or known to be broken:
    /// --tokenizer-from Qwen3-8B, or hf://Qwen/Qwen3-8B
    #[arg(long, value_name = "DIR")]
    tokenizer_from: Option<PathBuf>,
    /// Checkpoint folder of the target, or hf://org/name; required for an EAGLE-3 draft (tokenizer and
    /// layers)
    #[arg(long, value_name = "HF_DIR")]
    target_model_dir: Option<PathBuf>,
    /// List the model classes that can be converted, and exit
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
    let mut opened: Vec<(OutType, Converted)> = Vec::new();
    let (mut models, mut reports) = (Vec::new(), Vec::new());
    for outtype in &args.outtype {
        let from = outtype.converted_to();
        if !opened.iter().any(|(known, _)| *known == from) {
            let config = ConvertConfig {
                checkpoint: checkpoint.to_owned(),
                remote: None,
                outtype: from,
                mtp,
                tokenizer_from: args.tokenizer_from.clone(),
                target: args.target_model_dir.clone(),
            };
            opened.push((from, inputs.open_checkpoint(&config)?));
        }
        let (_, converted) = opened
            .iter()
            .find(|(known, _)| *known == from)
            .expect("it was just opened");
        let made = outtype.plan(converted, checkpoint)?;
        made.notes.iter().for_each(|note| output::note(note));
        let notes = converted.notes.iter().map(ToString::to_string);
        let Made {
            plan,
            ftype,
            notes: more,
        } = made;
        let notes = notes.chain(more).collect();
        let default_name = match outtype {
            FileType::Converted(_) => converted.default_name.clone(),
            FileType::Quantized(_) => renamed(&converted.default_name, &ftype),
        };
        let path = match &args.outfile {
            None => default_path(checkpoint, &default_name),
            Some(folder) if folder.is_dir() => folder.join(&default_name),
            Some(file) => fill_template(file, &ftype),
        };
        let parts = args.shard.shard(&plan, ShardStyle::Converter, None)?;
        models.push(Model::parts(parts, &path));
        reports.push(ConvertReport {
            schema_version: SCHEMA_VERSION,
            input: checkpoint.display().to_string(),
            architecture: plan.metadata.need_str(keys::ARCHITECTURE)?.to_owned(),
            outtype: outtype.to_string(),
            mtp: mtp_name.to_owned(),
            output: FileReport::default(),
            source: None,
            written: !args.write.dry_run,
            notes,
            elapsed_ms: 0,
        });
    }
    ensure!(
        args.outfile.as_ref().is_none_or(|file| models.len() < 2
            || file.is_dir()
            || fill_template(file, "a") != fill_template(file, "b")),
        "{}: one name for {} files, expected {{ftype}} in it to stand for the type",
        args.outfile.clone().unwrap_or_default().display(),
        models.len()
    );
    let written = args.write.write_all(models, &inputs, &command_line())?;
    let is_alone = reports.len() == 1;
    for (mut report, output) in reports.into_iter().zip(written.models) {
        report.output = output;
        report.source = inputs.sources().into_iter().next();
        report.elapsed_ms = start.elapsed().as_millis() as u64;
        let text = FileLine {
            file: &report.output,
            written: report.written,
        };
        match is_alone {
            true => output::result(args.write.format(), &report, &text)?,
            false => output::line(args.write.format(), &report, &text)?,
        }
    }
    Ok(Verdict::Pass)
}

/// Type of an output file: converted directly, or quantized from a conversion.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FileType {
    Converted(OutType),
    Quantized(FType),
}

impl FileType {
    /// As in llama-quantize, zero or a negative number selects all cores.
    fn converted_to(self) -> OutType {
        match self {
            FileType::Converted(outtype) => outtype,
            // Quantization starts from f32, so that values are rounded only once.
            FileType::Quantized(_) => OutType::F32,
        }
    }

    fn plan(self, converted: &Converted, checkpoint: &Path) -> anyhow::Result<Made> {
        match self {
            FileType::Converted(_) => {
                let plan = converted.plan.clone();
                Ok(Made {
                    ftype: file_type::of(&plan.metadata).unwrap_or_default(),
                    plan,
                    notes: Vec::new(),
                })
            }
            FileType::Quantized(ftype) => {
                let quantized = quantize::plan(&converted.plan, &QuantizeConfig::new(ftype))
                    .with_context(|| checkpoint.display().to_string())?;
                Ok(Made {
                    ftype: ftype.name().to_owned(),
                    notes: quantize_notes(&quantized),
                    plan: quantized.plan,
                })
            }
        }
    }
}

/// A file to be written.
struct Made {
    plan: Plan,
    /// The name of its type.
    ftype: String,
    /// Notes for the user about its types.
    notes: Vec<String>,
}

impl FromStr for FileType {
    type Err = quantize::UnknownFType;

    fn from_str(name: &str) -> Result<FileType, Self::Err> {
        match name.parse() {
            Ok(outtype) => Ok(FileType::Converted(outtype)),
            Err(_) => name.parse().map(FileType::Quantized),
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileType::Converted(outtype) => outtype.fmt(f),
            FileType::Quantized(ftype) => write!(f, "{}", ftype.name().to_lowercase()),
        }
    }
}

/// Replaces the type at the end of a default name.
fn renamed(name: &str, ftype: &str) -> String {
    let stem = name.strip_suffix("F32.gguf");
    stem.map_or_else(|| name.to_owned(), |stem| format!("{stem}{ftype}.gguf"))
}
