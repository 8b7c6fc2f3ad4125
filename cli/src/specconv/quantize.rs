//! `specconv quantize`: a model is written in another mix of types.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use convert::{MtpMode, OutType};
use indexmap::IndexMap;
use quantize::{Decision, FType, Imatrix, KeyOverride, QuantizeConfig, TypeRule, parse_type};
use schemas::gguf::{DType, Output};
use schemas::report::{QuantizeReport, SCHEMA_VERSION, Verdict};

use super::file::{Inputs, WriteArgs, Written};
use crate::output;

/// Write a model in another mix of types
///
/// The file is the one that llama.cpp's llama-quantize writes, byte for byte. An MTP head that
/// is inline is quantized with the rest. The folder of a checkpoint is converted in the same
/// pass, without a file in between.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "specconv quantize [OPTIONS] <IN> [OUT.gguf] <TYPE> [NTHREADS]",
    after_help = types_help()
)]
pub(super) struct Args {
    /// GGUF file, the first part of a split one, or the folder of a checkpoint
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File to write [default: ggml-model-TYPE.gguf beside the input], the type, and the number
    /// of threads
    #[arg(value_name = "OUT.gguf TYPE NTHREADS", num_args = 1..=3, required = true)]
    rest: Vec<String>,
    /// Requantize tensors that are quantized already, at a loss that quantizing from 16 or 32
    /// bits does not have
    #[arg(long)]
    allow_requantize: bool,
    /// Importance matrix, as llama-imatrix writes it (GGUF, or .dat)
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Use its entries with PART in their names and no others; may be given several times
    #[arg(long, value_name = "PART", requires = "imatrix")]
    include_weights: Vec<String>,
    /// Use its entries without PART in their names; may be given several times
    #[arg(
        long,
        value_name = "PART",
        requires = "imatrix",
        conflicts_with = "include_weights"
    )]
    exclude_weights: Vec<String>,
    /// Give all weights the same type, without a mix
    #[arg(long)]
    pure: bool,
    /// Leave output.weight as it is
    #[arg(long)]
    leave_output_tensor: bool,
    /// Type of output.weight, and of an embedding that serves as output
    #[arg(long, value_name = "TYPE", value_parser = parse_type)]
    output_tensor_type: Option<DType>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE", value_parser = parse_type)]
    token_embedding_type: Option<DType>,
    /// Type of tensors whose names match, such as ffn_down=q6_K; the first match decides; may be
    /// given several times
    #[arg(long, value_name = "REGEX=TYPE")]
    tensor_type: Vec<TypeRule>,
    /// More of these, separated by spaces or lines, after those given one by one
    #[arg(long, value_name = "FILE")]
    tensor_type_file: Vec<PathBuf>,
    /// Type of the MTP head's weights; eh_proj gets no fewer bits than Q8_0 has
    #[arg(long, value_name = "TYPE", value_parser = parse_type)]
    mtp_type: Option<DType>,
    /// Set a key of the result, TYPE being int, float, bool or str; may be given several times
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    override_kv: Vec<KeyOverride>,
    #[command(flatten)]
    write: WriteArgs,
}

fn types_help() -> String {
    let names: Vec<String> = FType::all().map(|ftype| ftype.to_string()).collect();
    format!("Types: {}", names.join(", "))
}

/// What the words behind the input mean.
#[derive(Debug, PartialEq)]
struct Request {
    output: Option<PathBuf>,
    ftype: FType,
    threads: Option<usize>,
}

/// Reads `[OUT] TYPE [NTHREADS]`: a first word that is a type means that OUT is left out.
fn parse(words: &[String]) -> anyhow::Result<Request> {
    let (output, ftype, threads) = match words {
        [ftype] => (None, ftype, None),
        [ftype, threads] if ftype.parse::<FType>().is_ok() => (None, ftype, Some(threads)),
        [output, ftype] => (Some(output), ftype, None),
        [output, ftype, threads] => (Some(output), ftype, Some(threads)),
        _ => bail!(
            "expected [OUT.gguf] TYPE [NTHREADS], found {} words",
            words.len()
        ),
    };
    Ok(Request {
        output: output.map(PathBuf::from),
        ftype: ftype.parse()?,
        threads: threads
            .map(|n| {
                n.parse()
                    .with_context(|| format!("number of threads {n:?}"))
            })
            .transpose()?,
    })
}

impl Args {
    fn imatrix(&self, inputs: &mut Inputs) -> anyhow::Result<Option<Imatrix>> {
        let Some(path) = &self.imatrix else {
            return Ok(None);
        };
        inputs.add(path);
        let mut imatrix = Imatrix::open(path)?;
        imatrix.exclude(&self.exclude_weights);
        if !self.include_weights.is_empty() {
            imatrix.include(&self.include_weights);
        }
        Ok(Some(imatrix))
    }

    fn tensor_types(&self) -> anyhow::Result<Vec<TypeRule>> {
        let mut rules = self.tensor_type.clone();
        for path in &self.tensor_type_file {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            for word in text.split_ascii_whitespace() {
                let rule = word.parse();
                rules.push(rule.with_context(|| path.display().to_string())?);
            }
        }
        Ok(rules)
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    let request = parse(&args.rest)?;
    let mut inputs = Inputs::default();
    let input = inputs.open(&args.input, OutType::F32, MtpMode::Inline)?;
    let quantized = quantize::plan(
        &input,
        &QuantizeConfig {
            allow_requantize: args.allow_requantize,
            imatrix: args.imatrix(&mut inputs)?,
            pure: args.pure,
            leave_output: args.leave_output_tensor,
            output_type: args.output_tensor_type,
            embedding_type: args.token_embedding_type,
            tensor_types: args.tensor_types()?,
            mtp_type: args.mtp_type,
            overrides: args.override_kv.clone(),
            ..QuantizeConfig::new(request.ftype)
        },
    )
    .with_context(|| args.input.display().to_string())?;
    let notes = notes(&quantized.decisions);
    notes.iter().for_each(|note| output::note(note));
    let path = request
        .output
        .unwrap_or_else(|| default_output(&args.input, request.ftype));
    let write = WriteArgs {
        threads: request.threads.unwrap_or(args.write.threads),
        ..args.write
    };
    let file = Output {
        plan: &quantized.plan,
        path: &path,
    };
    let [output] = write.write([file], &inputs)?;
    let report = QuantizeReport {
        schema_version: SCHEMA_VERSION,
        input: args.input.display().to_string(),
        input_data_bytes: input.data_bytes(),
        ftype: request.ftype.to_string(),
        bits_per_weight: quantized.plan.data_bytes() as f64 * 8.0
            / quantized.plan.n_elements().max(1) as f64,
        output,
        written: !write.dry_run,
        notes,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    let text = format!(
        "{}\ntensor data {} -> {}, {:.2} bits per weight",
        Written {
            file: &report.output,
            written: report.written,
        },
        output::bytes(report.input_data_bytes),
        output::bytes(quantized.plan.data_bytes()),
        report.bits_per_weight
    );
    output::result(write.format(), &report, &text)?;
    Ok(Verdict::Pass)
}

fn default_output(input: &Path, ftype: FType) -> PathBuf {
    let name = format!("ggml-model-{ftype}.gguf");
    match input.is_dir() {
        true => input.join(name),
        false => input.with_file_name(name),
    }
}

/// Tensors that could not get the type of their mix, one note for each pair of types, and those
/// that the importance matrix does not know.
fn notes(decisions: &[Decision]) -> Vec<String> {
    let mut groups: IndexMap<(DType, DType), Vec<&str>> = IndexMap::new();
    for decision in decisions {
        if let Some(unfit) = decision.unfit {
            let group = groups.entry((unfit, decision.to)).or_default();
            group.push(&decision.tensor);
        }
    }
    let note = |((unfit, to), names): ((DType, DType), Vec<&str>)| {
        let names = some(&names);
        format!("tensor {names}: rows are no whole {unfit} blocks, written as {to}")
    };
    let mut notes: Vec<String> = groups.into_iter().map(note).collect();
    let lacking = decisions.iter().filter(|d| d.lacks_importance);
    let lacking: Vec<&str> = lacking.map(|d| d.tensor.as_str()).collect();
    if !lacking.is_empty() {
        let names = some(&lacking);
        notes.push(format!(
            "tensor {names}: not in the importance matrix, quantized without"
        ));
    }
    notes
}

/// The first of some names, and how many more there are.
fn some(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    }
}
