//! `specconv convert`: converts an HF checkpoint to a GGUF file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context;
use convert::{ConvertConfig, Converted, MtpMode, OutType};
use quantize::{FType, QuantizeConfig};
use schemas::arch::keys;
use schemas::gguf::{Plan, ShardStyle};
use schemas::report::{ConvertReport, SCHEMA_VERSION, Verdict, WorkKind};

use super::file_type;
use super::input::Inputs;
use super::quantize::notes as quantize_notes;
use super::work::models::ModelWork;
use super::write::{
    FileLine, Model, ShardArgs, WriteArgs, command_line, default_path, fill_templates,
};
use crate::output;
use crate::work::{Divisible, Work};

/// Convert an HF checkpoint to GGUF
///
/// Reads config.json, the tokenizer and model*.safetensors from a folder, or from the Hub, where only
/// the bytes that the file needs are downloaded. The result is byte-identical to that of llama.cpp's
/// convert_hf_to_gguf.py.
///
/// For the Hub, HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE are respected. With --mtp,
/// only the head is downloaded. An EAGLE-3 draft also needs the folder of its target (--target-model-dir).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Checkpoint folder, or hf://org/name[@revision]
    #[arg(
        value_name = "HF_DIR",
        required_unless_present = "print_supported_models"
    )]
    checkpoint: Option<PathBuf>,
    /// File to write, or folder to write it to
    ///
    /// {ftype} and {outtype} in the name are replaced by the type, {FTYPE} and {OUTTYPE} by the type in
    /// capitals [default: named after the model, in HF_DIR, or in the current folder for a checkpoint on the
    /// Hub]
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: Option<PathBuf>,
    /// Type of the matrices: f32, f16, bf16, q8_0, auto, or a type of quantize
    ///
    /// auto is the 16-bit type closest to the checkpoint's. A type of quantize, such as q4_k_m, quantizes in the
    /// same pass. Several types, separated by commas, write one file each
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
    /// Write only the DSpark draft of a DeepSeek V4 checkpoint
    ///
    /// Requires --target-model-dir. llama.cpp drafts with it, specrun does not
    #[arg(long, conflicts_with_all = ["mtp", "no_mtp"], requires = "target_model_dir")]
    dspark: bool,
    /// Omit the clusters of an assistant's tokens, with which llama.cpp cannot load the file
    ///
    /// The assistant then scores all tokens
    #[arg(long)]
    no_clusters: bool,
    /// Folder of another tokenizer, or hf://org/name
    ///
    /// Use it if the checkpoint's own tokenizer is unreadable or known to be broken: --tokenizer-from Qwen3-8B
    #[arg(long, value_name = "DIR")]
    tokenizer_from: Option<PathBuf>,
    /// Checkpoint folder of the target, or hf://org/name
    ///
    /// Required for an EAGLE-3 draft, which has the tokenizer and layer numbers of its target
    #[arg(long, value_name = "HF_DIR")]
    target_model_dir: Option<PathBuf>,
    /// List the model classes that can be converted, and exit
    #[arg(long)]
    print_supported_models: bool,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    pub(super) write: WriteArgs,
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
    args.check_names()?;
    let mut inputs = Inputs::new(&args.write);
    let outputs = plan(args, checkpoint, &mut inputs)?;
    let models = args.models(&outputs)?;
    let written = args.write.write_all(models, &inputs, &command_line())?;
    let mut reports = Vec::new();
    for (output, file) in outputs.into_iter().zip(written.models) {
        reports.push(ConvertReport {
            schema_version: SCHEMA_VERSION,
            input: checkpoint.display().to_string(),
            architecture: (output.plan.metadata)
                .need_str(keys::ARCHITECTURE)?
                .to_owned(),
            outtype: output.file_type.to_string(),
            mtp: args.mtp_mode().1.to_owned(),
            output: file,
            source: inputs.sources().into_iter().next(),
            written: !args.write.dry_run,
            notes: [output.convert_notes, output.quantize_notes].concat(),
            elapsed_ms: start.elapsed().as_millis() as u64,
        });
    }
    output::results(args.write.format(), &reports, &|report| {
        let (file, written) = (&report.output, report.written);
        FileLine { file, written }.to_string()
    })?;
    Ok(Verdict::Pass)
}

impl Args {
    /// Checks that several types do not share one file name.
    fn check_names(&self) -> anyhow::Result<()> {
        if let Some(file) = self.outfile.as_ref().filter(|file| !file.is_dir()) {
            let types: Vec<String> = self.outtype.iter().map(ToString::to_string).collect();
            let types: Vec<&str> = types.iter().map(String::as_str).collect();
            fill_templates(file, &types)?;
        }
        Ok(())
    }

    /// Returns the models to write, after the notes about them are printed.
    fn models(&self, outputs: &[PlannedOutput]) -> anyhow::Result<Vec<Model>> {
        let mut models = Vec::new();
        for output in outputs {
            for note in &output.quantize_notes {
                output::note(note);
            }
            let shards = self
                .shard
                .shard(&output.plan, ShardStyle::Converter, None)?;
            models.push(Model::parts(shards, &output.path));
        }
        Ok(models)
    }

    /// Returns the part of the model to convert, and its name in reports.
    fn mtp_mode(&self) -> (MtpMode, &'static str) {
        match (self.mtp, self.no_mtp) {
            _ if self.dspark => (MtpMode::DSpark, "dspark"),
            (true, _) => (MtpMode::Only, "only"),
            (_, true) => (MtpMode::Without, "without"),
            _ => (MtpMode::Inline, "inline"),
        }
    }

    /// Returns the path of an output. `name` is its default name, `ftype` the name of its type.
    fn output_path(&self, checkpoint: &Path, name: &str, ftype: &str) -> anyhow::Result<PathBuf> {
        match &self.outfile {
            None => Ok(default_path(checkpoint, name)),
            Some(folder) if folder.is_dir() => Ok(folder.join(name)),
            Some(file) => Ok(fill_templates(file, &[ftype])?.remove(0)),
        }
    }
}

impl Divisible for Args {
    fn kind(&self) -> WorkKind {
        WorkKind::Convert
    }

    fn open(&self) -> anyhow::Result<Box<dyn Work + '_>> {
        let checkpoint = self
            .checkpoint
            .as_deref()
            .context("no checkpoint was given")?;
        self.check_names()?;
        let mut inputs = Inputs::new(&self.write);
        let outputs = plan(self, checkpoint, &mut inputs)?;
        let models = self.models(&outputs)?;
        let types: Vec<String> = self.outtype.iter().map(ToString::to_string).collect();
        let options = format!("types {} mtp {}", types.join(","), self.mtp_mode().1);
        let work = ModelWork::new(&self.write, models, inputs, options)?;
        Ok(Box::new(work))
    }
}

/// A file to be written.
struct PlannedOutput {
    file_type: FileType,
    plan: Plan,
    path: PathBuf,
    /// Notes of the conversion, already printed.
    convert_notes: Vec<String>,
    /// Notes of the quantization, not yet printed.
    quantize_notes: Vec<String>,
}

/// Plans one output for each requested type. The checkpoint is opened once for each type that it is
/// converted to.
fn plan(args: &Args, checkpoint: &Path, inputs: &mut Inputs) -> anyhow::Result<Vec<PlannedOutput>> {
    let mut conversions: Vec<(OutType, Converted)> = Vec::new();
    let mut outputs = Vec::new();
    for &file_type in &args.outtype {
        let outtype = file_type.converted_to();
        let known = conversions.iter().position(|(known, _)| *known == outtype);
        let index = match known {
            Some(index) => index,
            None => {
                let config = ConvertConfig {
                    checkpoint: checkpoint.to_owned(),
                    remote: None,
                    outtype,
                    mtp: args.mtp_mode().0,
                    clusters: !args.no_clusters,
                    tokenizer_from: args.tokenizer_from.clone(),
                    target: args.target_model_dir.clone(),
                };
                conversions.push((outtype, inputs.open_checkpoint(&config)?));
                conversions.len() - 1
            }
        };
        let converted = &conversions[index].1;
        let typed = file_type.plan(converted, checkpoint)?;
        let default_name = match file_type {
            FileType::Converted(_) => converted.default_name.clone(),
            FileType::Quantized(_) => with_type(&converted.default_name, &typed.ftype),
        };
        outputs.push(PlannedOutput {
            file_type,
            path: args.output_path(checkpoint, &default_name, &typed.ftype)?,
            plan: typed.plan,
            convert_notes: converted.notes.iter().map(ToString::to_string).collect(),
            quantize_notes: typed.notes,
        });
    }
    Ok(outputs)
}

/// Type of an output file: converted directly, or quantized from a conversion.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FileType {
    Converted(OutType),
    Quantized(FType),
}

impl FileType {
    /// Returns the type that the checkpoint is converted to. Quantization starts from f32, so that values
    /// are rounded only once.
    fn converted_to(self) -> OutType {
        match self {
            FileType::Converted(outtype) => outtype,
            FileType::Quantized(_) => OutType::F32,
        }
    }

    fn plan(self, converted: &Converted, checkpoint: &Path) -> anyhow::Result<TypedPlan> {
        match self {
            FileType::Converted(_) => {
                let plan = converted.plan.clone();
                Ok(TypedPlan {
                    ftype: file_type::of(&plan.metadata).unwrap_or_default(),
                    plan,
                    notes: Vec::new(),
                })
            }
            FileType::Quantized(ftype) => {
                let quantized = quantize::plan(&converted.plan, &QuantizeConfig::new(ftype))
                    .with_context(|| checkpoint.display().to_string())?;
                Ok(TypedPlan {
                    ftype: ftype.name().to_owned(),
                    notes: quantize_notes(&quantized),
                    plan: quantized.plan,
                })
            }
        }
    }
}

/// A plan with the requested types.
struct TypedPlan {
    plan: Plan,
    /// Name of the file type.
    ftype: String,
    /// Notes of the quantization.
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
fn with_type(name: &str, ftype: &str) -> String {
    let stem = name.strip_suffix("F32.gguf");
    stem.map_or_else(|| name.to_owned(), |stem| format!("{stem}{ftype}.gguf"))
}
