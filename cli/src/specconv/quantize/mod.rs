//! `specconv quantize`: converts a model to another mix of types.

mod options;
mod recipe;
mod table;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use convert::{MtpMode, OutType};
use indexmap::IndexMap;
use quantize::{Decision, FType, Quantized};
use schemas::gguf::{DType, Plan, ShardStyle, shard_by};
use schemas::report::{QuantizeReport, SCHEMA_VERSION, Verdict, WorkKind};

use self::options::Options;
use self::table::Table;
use super::input::Inputs;
use super::work::models::ModelWork;
use super::write::{FileLine, Model, WriteArgs, default_path, fill_templates};
use crate::output;
use crate::work::{Divisible, Work};

/// Quantize a model
///
/// The result is byte-identical to that of llama.cpp's llama-quantize. An inline MTP head is quantized
/// with the rest. A checkpoint folder is converted in the same pass, without an intermediate file.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "specconv quantize [OPTIONS] <IN> [OUT.gguf] <TYPE> [NTHREADS]\n       \
                      specconv quantize --recipe <FILE.toml> [OPTIONS] [IN] [OUT.gguf] [TYPE]",
    after_help = types_help()
)]
pub(super) struct Args {
    /// Input, output (optional), type, and number of threads (optional)
    ///
    /// Input: GGUF file, first shard of a split model, checkpoint folder, or hf://org/name. Output: file to
    /// write; {ftype} in its name is replaced by the type [default: ggml-model-TYPE.gguf beside the input].
    /// Type: one, or several separated by commas
    #[arg(value_name = "IN OUT.gguf TYPE NTHREADS", num_args = 0..=4)]
    #[arg(required_unless_present = "recipe", allow_negative_numbers = true)]
    positionals: Vec<OsString>,
    /// Recipe: TOML file of options, named like their flags; flags override it
    #[arg(long, value_name = "FILE.toml")]
    recipe: Option<PathBuf>,
    /// Print all options of recipe and flags as a recipe, and exit
    #[arg(long)]
    print_recipe: bool,
    /// Instruction set of the quantization kernels, such as avx2 or portable
    ///
    /// For benchmarks; the result does not depend on it [default: the fastest that the machine supports]
    #[arg(long, value_name = "NAME")]
    isa: Option<String>,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    pub(super) write: WriteArgs,
}

/// Lists the file types with the bits per weight of their main element type.
fn types_help() -> String {
    let line = |ftype: FType| {
        let mark = if ftype.is_recommended() { "*" } else { " " };
        let bits = ftype.default_dtype().and_then(DType::bits_per_weight);
        let bits = bits.map_or("as stored".to_owned(), |bits| format!("{bits:.2} bits"));
        format!("\n{mark} {:<10} {bits}", ftype.name())
    };
    let lines: String = FType::all().map(line).collect();
    format!(
        "Types, with the bits per weight of most tensors; a few tensors get more (* recommended):{lines}"
    )
}

impl Args {
    /// Returns the options of flags and recipe combined.
    fn effective(&self) -> anyhow::Result<Options> {
        let recipe = match &self.recipe {
            Some(path) => recipe::read(path)?,
            None => Options::default(),
        };
        let mut options = self.options.clone();
        options.read_positionals(&self.positionals, &recipe)?;
        let flag = Some(self.write.threads).filter(|&n| n > 0);
        options.threads = options.threads.or(flag);
        options.max_buffer_size = self.write.max_buffer_size;
        Ok(options.or_recipe(recipe))
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    if let Some(isa) = &args.isa {
        kernels::types::choose(isa)?;
    }
    let options = args.effective()?;
    if args.print_recipe {
        output::data(&recipe::to_text(&options)?)?;
        return Ok(Verdict::Pass);
    }
    let Planned {
        ftypes,
        input,
        inputs,
        models,
        notes,
        files,
    } = Planned::open(args, &options)?;
    let write = WriteArgs {
        threads: options.threads.unwrap_or_default(),
        max_buffer_size: options.max_buffer_size,
        ..args.write.clone()
    };
    let written = write.write_all(files, &inputs, &journal_options(&options))?;
    let outputs = written.models.into_iter().zip(notes);
    let mut reports = Vec::new();
    for ((ftype, quantized), (output, notes)) in ftypes.iter().zip(&models).zip(outputs) {
        reports.push(QuantizeReport {
            schema_version: SCHEMA_VERSION,
            input: options.input()?.display().to_string(),
            input_data_bytes: input.data_bytes(),
            ftype: ftype.to_string(),
            output,
            bits_per_weight: bits_per_weight(&quantized.plan),
            written: !write.dry_run,
            types: table::types(quantized),
            tensors: table::tensors(&quantized.decisions),
            peak_buffer_bytes: written.peak_buffer_bytes,
            notes,
            elapsed_ms: start.elapsed().as_millis() as u64,
        });
    }
    output::results(write.format(), &reports, &|report| Text(report).to_string())?;
    Ok(Verdict::Pass)
}

/// The files to write.
struct Planned {
    ftypes: Vec<FType>,
    input: Plan,
    inputs: Inputs,
    models: Vec<Quantized>,
    /// Notes on each model, already printed.
    notes: Vec<Vec<String>>,
    files: Vec<Model>,
}

impl Planned {
    fn open(args: &Args, options: &Options) -> anyhow::Result<Planned> {
        let mut inputs = Inputs::new(&args.write);
        args.recipe.iter().for_each(|path| inputs.add(path));
        let ftypes = options.ftypes()?;
        let paths = output_paths(options, &ftypes)?;
        let input = inputs.open(options.input()?, OutType::F32, MtpMode::Inline)?;
        let models = plan(options, &ftypes, &input, &mut inputs)?;
        let notes: Vec<Vec<String>> = models.iter().map(notes).collect();
        notes.iter().flatten().for_each(|note| output::note(note));
        let files = models.iter().zip(&paths);
        let files = files.map(|(quantized, path)| model(quantized, path, options));
        Ok(Planned {
            files: files.collect::<anyhow::Result<_>>()?,
            ftypes,
            input,
            inputs,
            models,
            notes,
        })
    }
}

impl Divisible for Args {
    fn kind(&self) -> WorkKind {
        WorkKind::Quantize
    }

    fn open(&self) -> anyhow::Result<Box<dyn Work + '_>> {
        let options = self.effective()?;
        let Planned { inputs, files, .. } = Planned::open(self, &options)?;
        let work = ModelWork::new(&self.write, files, inputs, journal_options(&options))?;
        Ok(Box::new(work))
    }
}

/// Formats the options that determine the output bytes: threads and buffer size do not.
fn journal_options(options: &Options) -> String {
    let options = Options {
        threads: None,
        max_buffer_size: None,
        ..options.clone()
    };
    let recipe = recipe::to_text(&options);
    // A name that is not UTF-8 cannot be a recipe, but can be quantized.
    let text = recipe.unwrap_or_else(|_| format!("{options:?}"));
    format!("quantize {text}")
}

/// Plans the model in every type.
fn plan(
    options: &Options,
    ftypes: &[FType],
    input: &Plan,
    inputs: &mut Inputs,
) -> anyhow::Result<Vec<Quantized>> {
    let read = options.imatrix.iter().chain(&options.tensor_type_file);
    read.for_each(|path| inputs.add(path));
    let imatrix = options.imatrix()?;
    let path = options.input()?.display();
    let plan = |&ftype: &FType| {
        let config = options.config(ftype, imatrix.clone())?;
        quantize::plan(input, &config).with_context(|| path.to_string())
    };
    ftypes.iter().map(plan).collect()
}

/// Returns the model to write: one file, or as many shards as the input has. A single shard still has a
/// number in its name.
fn model(quantized: &Quantized, path: &Path, options: &Options) -> anyhow::Result<Model> {
    let Quantized {
        plan, shard_lens, ..
    } = quantized;
    let parts = match shard_lens.len() {
        1 => vec![plan.clone()],
        _ => shard_by(plan, shard_lens, ShardStyle::Converter)?,
    };
    Ok(match options.keep_split {
        Some(true) => Model::numbered(parts, path),
        _ => Model::parts(parts, path),
    })
}

fn bits_per_weight(plan: &Plan) -> f64 {
    plan.data_bytes() as f64 * 8.0 / plan.n_elements().max(1) as f64
}

/// Returns an output path for each type.
fn output_paths(options: &Options, ftypes: &[FType]) -> anyhow::Result<Vec<PathBuf>> {
    let template = match &options.output {
        Some(output) => output.clone(),
        None => default_path(options.input()?, "ggml-model-{FTYPE}.gguf"),
    };
    let names: Vec<&str> = ftypes.iter().map(|ftype| ftype.name()).collect();
    fill_templates(&template, &names)
}

/// Text output of the report.
struct Text<'a>(&'a QuantizeReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text(report) = self;
        let data_bytes = report.types.iter().map(|change| change.size_after_bytes);
        if !report.written {
            writeln!(f, "{}\n", Table::of_tensors(&report.tensors))?;
        }
        let written = FileLine {
            file: &report.output,
            written: report.written,
        };
        writeln!(f, "{written}")?;
        writeln!(
            f,
            "tensor data {} -> {}, {:.2} bits per weight\n",
            output::bytes(report.input_data_bytes),
            output::bytes(data_bytes.sum()),
            report.bits_per_weight
        )?;
        write!(f, "{}", Table::of_types(&report.types))
    }
}

/// Lists notes to print before writing: tensors that could not get their intended type, tensors that the
/// importance matrix does not contain, and changed keys.
pub(super) fn notes(quantized: &Quantized) -> Vec<String> {
    let mut groups: IndexMap<(DType, DType), Vec<&str>> = IndexMap::new();
    for decision in &quantized.decisions {
        if let Some(unfit) = decision.unfit {
            let group = groups.entry((unfit, decision.to)).or_default();
            group.push(&decision.tensor);
        }
    }
    let note = |((unfit, to), names): ((DType, DType), Vec<&str>)| {
        let names = list(&names, 1);
        format!(
            "tensor {names}: row length is not a multiple of the {unfit} block, written as {to}"
        )
    };
    let mut notes: Vec<String> = groups.into_iter().map(note).collect();
    let lacking = |is_mtp: bool| -> Vec<&str> {
        let decisions = quantized.decisions.iter();
        let lacking = decisions.filter(|d| d.lacks_importance && d.is_mtp == is_mtp);
        lacking.map(|d: &Decision| d.tensor.as_str()).collect()
    };
    for (names, hint) in [
        (lacking(false), ""),
        (
            lacking(true),
            "; specrun imatrix collects an MTP head only with --nextn",
        ),
    ] {
        if !names.is_empty() {
            let names = list(&names, 12);
            notes.push(format!(
                "tensor {names}: not in the importance matrix, quantized without importance{hint}"
            ));
        }
    }
    if !quantized.shortened_keys.is_empty() {
        let keys = quantized.shortened_keys.join(", ");
        notes.push(format!("key {keys}: shortened to the remaining layers"));
    }
    notes
}

/// Formats the first few names and the number of remaining ones.
fn list(names: &[&str], n_listed: usize) -> String {
    let listed = names[..names.len().min(n_listed)].join(", ");
    match names.len().saturating_sub(n_listed) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}
