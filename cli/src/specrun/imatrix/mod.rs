//! `specrun imatrix`: importance matrices for quantization.

mod text;
mod work;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use runner::model_files::{DraftFiles, Files};
use runner::speculate::{DraftKind, SpecType};
use runner::tokenizer::EncodeConfig;
use schemas::gguf::{self, Output, WriteConfig};
use schemas::imatrix::{ImatrixFile, ImatrixFormat};
use schemas::input;
use schemas::outfile::{self, OutputNames};
use schemas::report::{ImatrixEntryReport, ImatrixReport, SCHEMA_VERSION, Verdict};
use verify::imatrix::statistics::summarize;
use verify::imatrix::{Collected, ImatrixConfig, Progress, Resume, collect};
use verify::perplexity::Text;

use super::device::on_device;
use super::model::ModelArgs;
use super::model_file::ModelFile;
use crate::hint::Hinted;
use crate::interrupt;
use crate::output::{self, Format};
use crate::provenance::provenance;
use crate::report_file::{self, OverwriteArgs, ReportFile};

/// Collect an importance matrix for quantization
///
/// Evaluates texts and writes sums over the inputs of each weight, which specconv quantize --imatrix and
/// llama-quantize read. The file is the one that llama-imatrix writes, entry by entry.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text file; may be given several times
    #[arg(short, long, value_name = "TEXT.txt")]
    file: Vec<PathBuf>,
    /// File to write [default: imatrix.gguf, or imatrix.dat with --output-format dat]
    #[arg(short, long, visible_aliases = ["output", "output-file"], value_name = "OUT.gguf", conflicts_with = "show_statistics")]
    outfile: Option<PathBuf>,
    /// Context size in tokens: texts are evaluated in chunks of this length
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    ctx_size: u32,
    /// Maximum number of tokens of a pass; whole chunks are evaluated together if they fit
    ///
    /// The result does not depend on it
    #[arg(short, long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Maximum number of chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Number of chunks to skip
    #[arg(long, visible_alias = "chunk", value_name = "N", default_value_t = 0)]
    from_chunk: u32,
    /// Also collect the output matrix
    ///
    /// A model without one uses the embedding, whose entry then has its name. This evaluates the output matrix for
    /// every token
    #[arg(long)]
    process_output: bool,
    /// Also collect the MTP head of the model
    ///
    /// The head evaluates the text on the hidden states of the model
    #[arg(long, conflicts_with = "draft")]
    nextn: bool,
    // Its id is its own, so that the environment variables of drafts do not add one.
    /// Draft to collect: MTP sidecar, EAGLE-3 or DFlash draft [short: -md]
    ///
    /// The draft evaluates the text on the hidden states of the model. An MTP head is collected together with the
    /// model; other drafts are collected alone, because their tensors have the names of the model's
    #[arg(long = "model-draft", id = "draft", value_name = "DRAFT.gguf")]
    model_draft: Option<ModelFile>,
    /// Importance matrices to add, separated by commas; may be given several times
    ///
    /// Without --file, they are only added. No model is needed then
    #[arg(long, value_name = "IMATRIX", value_delimiter = ',')]
    in_file: Vec<PathBuf>,
    /// Print the statistics of --in-file and write nothing
    #[arg(long, requires = "in_file", conflicts_with = "file")]
    show_statistics: bool,
    /// Format of the file: gguf, or dat for the older binary format
    ///
    /// dat has no sums of values, so it is less precise
    #[arg(long, value_name = "FORMAT", default_value = "gguf", value_parser = format)]
    output_format: ImatrixFormat,
    /// With --resume: save the state after every N chunks [short: -ofreq]
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    output_frequency: u32,
    /// Keep a copy of the file after every N chunks, as OUT.gguf.at_N; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    save_frequency: u32,
    /// Keep the state of an interrupted run beside the output, and continue from it
    #[arg(long)]
    resume: bool,
    /// Do not compute the perplexity of the texts
    #[arg(long)]
    no_ppl: bool,
    /// Convert names of special tokens in the texts to these tokens
    #[arg(long)]
    parse_special: bool,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn format(name: &str) -> Result<ImatrixFormat, &'static str> {
    match name {
        "gguf" => Ok(ImatrixFormat::Gguf),
        "dat" => Ok(ImatrixFormat::Dat),
        _ => Err("expected gguf or dat"),
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    if args.show_statistics {
        let report = report(args, &merged(args)?, None);
        output::result(Format::of(args.json), &report, &text::Statistics(&report))?;
        return Ok(Verdict::Pass);
    }
    if args.file.is_empty() && args.in_file.is_empty() {
        let hint = "give one: -f TEXT.txt; --in-file adds files that exist";
        return Err(Hinted::new("no text was given", hint).into());
    }
    let outfile = args.outfile();
    let target = args.claim(&outfile)?;
    let file = merged(args)?;
    let collected = match args.file.is_empty() {
        true => None,
        false => Some(evaluate(args, &outfile, &file)?),
    };
    finish(args, &outfile, target, file, collected)
}

impl Args {
    /// Returns the path of the file to write.
    fn outfile(&self) -> PathBuf {
        let default = match self.output_format {
            ImatrixFormat::Gguf => "imatrix.gguf",
            ImatrixFormat::Dat => "imatrix.dat",
        };
        self.outfile.clone().unwrap_or_else(|| default.into())
    }

    /// Returns the files that are read.
    fn inputs(&self) -> anyhow::Result<Vec<&Path>> {
        let mut inputs: Vec<&Path> = self.file.iter().map(PathBuf::as_path).collect();
        inputs.extend(self.in_file.iter().map(PathBuf::as_path));
        if !self.file.is_empty() {
            inputs.push(self.model.path()?);
            inputs.extend(self.draft()?);
        }
        Ok(inputs)
    }

    /// Returns the file of the draft.
    fn draft(&self) -> anyhow::Result<Option<&Path>> {
        self.model_draft.as_ref().map(ModelFile::path).transpose()
    }

    /// Claims the name of the file to write.
    fn claim(&self, outfile: &Path) -> anyhow::Result<ReportFile> {
        let mut names = OutputNames::new(self.inputs()?, self.overwrite.existing());
        ReportFile::regular(outfile, &mut names)
    }
}

/// Adds the collected sums to `file`, writes it, and prints the result.
fn finish(
    args: &Args,
    outfile: &Path,
    target: ReportFile,
    mut file: ImatrixFile,
    collected: Option<Collected>,
) -> anyhow::Result<Verdict> {
    if let Some(collected) = &collected {
        add(&mut file, collected)?;
    }
    write(&file, outfile, target, args.output_format)?;
    if args.resume {
        remove(&state_path(outfile))?;
    }
    let mut report = report(args, &file, collected.as_ref());
    report.path = Some(outfile.display().to_string());
    if args.json && collected.is_some() {
        let models = [args.model.path()?].into_iter().chain(args.draft()?);
        report.provenance = Some(provenance(models, None)?);
    }
    output::result(Format::of(args.json), &report, &text::Written(&report))?;
    Ok(Verdict::Pass)
}

/// Adds the given files.
fn merged(args: &Args) -> anyhow::Result<ImatrixFile> {
    let mut merged = ImatrixFile::default();
    for path in &args.in_file {
        let shown = path.display();
        let file = ImatrixFile::open(path)?;
        let differs = |found: u32, expected: u32| found > 0 && expected > 0 && found != expected;
        if differs(file.chunk_size, merged.chunk_size) {
            output::warning(&format_args!(
                "{shown}: chunks of {}, expected {} as in the files before, which the result records",
                file.chunk_size, merged.chunk_size
            ));
        }
        if differs(file.n_heads, merged.n_heads) {
            output::warning(&format_args!(
                "{shown}: {} MTP heads, expected {} as in the files before, which the result records",
                file.n_heads, merged.n_heads
            ));
        }
        let added = merged.add(&file, args.ctx_size);
        added.with_context(|| shown.to_string())?;
    }
    Ok(merged)
}

/// Adds the sums of this run.
fn add(file: &mut ImatrixFile, collected: &Collected) -> anyhow::Result<()> {
    let n_chunks = file.n_chunks.saturating_add(collected.file.n_chunks);
    file.add(&collected.file, collected.file.chunk_size)?;
    file.n_chunks = n_chunks;
    Ok(())
}

/// Evaluates the texts. `before` is the matrix to which the sums will be added.
fn evaluate(args: &Args, outfile: &Path, before: &ImatrixFile) -> anyhow::Result<Collected> {
    let Opened {
        files,
        texts,
        config,
    } = Opened::new(args)?;
    if before.chunk_size > 0 && before.chunk_size != args.ctx_size {
        output::warning(&format_args!(
            "chunks of {}, expected {} as in --in-file, which the result records",
            args.ctx_size, before.chunk_size
        ));
    }
    let config = ImatrixConfig {
        resume: match args.resume {
            true => Some(Resume {
                path: state_path(outfile),
                settings: settings(args, args.model.path()?, args.draft()?)?,
            }),
            false => None,
        },
        stop_every: Some(args.save_frequency as usize).filter(|&n| n > 0),
        ..config
    };
    let mut n_saved = 0;
    let after_pass = |progress: &Progress<'_>| -> anyhow::Result<()> {
        let n_done = progress.n_done;
        if config
            .stop_every
            .is_some_and(|every| n_done.is_multiple_of(every))
        {
            save_copy(args, outfile, before, progress)?;
        }
        if args.resume && n_done >= n_saved + args.output_frequency as usize {
            progress.save()?;
            n_saved = n_done;
        }
        Ok(())
    };
    let device = args.model.device()?;
    let collected = on_device!(&device, backend => {
        collect(backend, &files, &texts, &config, after_pass)
    })?;
    if collected.n_resumed > 0 {
        output::status(&format_args!(
            "continued after {} of {} chunks",
            collected.n_resumed, collected.n_chunks
        ));
    }
    Ok(collected)
}

/// The models and texts of a collection.
struct Opened {
    files: Files,
    texts: Vec<Text>,
    /// The configuration of an uninterrupted run.
    config: ImatrixConfig,
}

impl Opened {
    fn new(args: &Args) -> anyhow::Result<Opened> {
        let draft = args.draft()?;
        let drafts = DraftFiles {
            models: draft.map(Path::to_path_buf).into_iter().collect(),
            ..DraftFiles::default()
        };
        let files = Files::open(args.model.path()?, &drafts)?;
        let kind = draft_kind(args, &files)?;
        if kind.is_none() && files.model.hparams.n_mtp() > 0 {
            output::note(&"the MTP head is left out; --nextn collects it");
        }
        let texts = args.file.iter();
        let texts = texts.map(|path| read_text(path, &files, args.parse_special));
        Ok(Opened {
            texts: texts.collect::<anyhow::Result<_>>()?,
            files,
            config: args.config(kind),
        })
    }
}

impl Args {
    /// Returns the configuration of an uninterrupted run.
    fn config(&self, draft: Option<SpecType>) -> ImatrixConfig {
        ImatrixConfig {
            n_ctx: self.ctx_size as usize,
            n_batch: self.batch_size as usize,
            first_chunk: self.from_chunk as usize,
            n_chunks_max: self.chunks.map(|n| n as usize),
            process_output: self.process_output,
            perplexity: !self.no_ppl,
            draft,
            types: self.model.caches.types(),
            resume: None,
            stop_every: None,
        }
    }
}

/// Returns the draft that is evaluated with the model.
fn draft_kind(args: &Args, files: &Files) -> anyhow::Result<Option<SpecType>> {
    let shown = files.model.path.display();
    let has_head = files.model.hparams.n_mtp() > 0;
    if args.nextn && !has_head {
        let hint = "leave out --nextn, or name the head's file: -md HEAD.gguf";
        return Err(Hinted::new(format!("{shown}: the model has no MTP head"), hint).into());
    }
    let Some(draft) = files.drafts.first() else {
        let head = files.default_spec_types().first().copied();
        return Ok(head.filter(|_| args.nextn));
    };
    if draft.hparams.assistant.is_some() {
        let draft = draft.path.display();
        let hint = "quantize an assistant without an importance matrix";
        let message = format!("{draft}: an assistant attends to keys and values of the model");
        return Err(Hinted::new(message, hint).into());
    }
    let draft = draft.path.display();
    let kind = files.default_spec_types().first().copied();
    let model = kind.and_then(|kind| kind.spec().model.as_ref());
    match model.map(|model| model.kind) {
        None | Some(DraftKind::Model) => {
            let hint = format!("specrun imatrix {draft} -f TEXT.txt");
            let message = format!("{draft}: a draft that does not read hidden states of the model");
            Err(Hinted::new(message, hint).into())
        }
        Some(DraftKind::Mtp) if has_head => {
            let message =
                format!("{shown}: the model has an MTP head, expected none with -md {draft}");
            Err(Hinted::new(
                message,
                "--nextn instead of -md collects the head of the model",
            )
            .into())
        }
        Some(_) => Ok(kind),
    }
}

fn read_text(path: &Path, files: &Files, parse_special: bool) -> anyhow::Result<Text> {
    let content = input::read_text(path, input::Kind::Stream, input::MAX_WHOLE);
    let content = content.with_context(|| path.display().to_string())?;
    let config = EncodeConfig {
        add_special: true,
        parse_special,
    };
    let tokens = files.tokenizer.encode(&content, config);
    let bos = files.tokenizer.bos();
    Ok(Text {
        name: path.display().to_string(),
        // The text begins with BOS only if the model requires it.
        bos: bos.filter(|bos| tokens.first() == Some(bos)),
        tokens,
    })
}

/// Returns everything that the sums depend on besides the texts.
fn settings(args: &Args, model: &Path, draft: Option<&Path>) -> anyhow::Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut lines = vec![format!("version {version}")];
    for path in [model].into_iter().chain(draft) {
        for part in gguf::part_paths(path)? {
            let shown = part.display();
            let found = fs::metadata(&part).with_context(|| shown.to_string())?;
            let modified = found.modified().with_context(|| shown.to_string())?;
            lines.push(format!("input {shown} {} {modified:?}", found.len()));
        }
    }
    lines.push(format!(
        "options -c {} --from-chunk {} --process-output {} --nextn {} --no-ppl {} {:?}",
        args.ctx_size,
        args.from_chunk,
        args.process_output,
        args.nextn,
        args.no_ppl,
        args.model.caches.types()
    ));
    Ok(lines.join("\n"))
}

/// Returns the path of the state of an unfinished run.
fn state_path(outfile: &Path) -> PathBuf {
    outfile::beside(outfile, "imatrix-state")
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Writes a copy of the file after some chunks.
fn save_copy(
    args: &Args,
    outfile: &Path,
    before: &ImatrixFile,
    progress: &Progress<'_>,
) -> anyhow::Result<()> {
    let mut name = outfile.as_os_str().to_owned();
    name.push(format!(".at_{}", progress.n_done));
    let path = PathBuf::from(name);
    let mut names = OutputNames::new([outfile], args.overwrite.existing());
    let target = ReportFile::regular(&path, &mut names)?;
    let mut file = before.clone();
    file.add(&progress.file(), args.ctx_size)?;
    write(&file, &path, target, args.output_format)
}

fn write(
    file: &ImatrixFile,
    path: &Path,
    target: ReportFile,
    format: ImatrixFormat,
) -> anyhow::Result<()> {
    match format {
        ImatrixFormat::Gguf => {
            let plan = file.plan(&summarize(file).of_file(file));
            let output = Output { plan: &plan, path };
            interrupt::while_writing(|cancelled| {
                let config = WriteConfig {
                    cancelled,
                    ..WriteConfig::new()
                };
                Ok(gguf::write(&[output], &config)?)
            })?;
            Ok(())
        }
        ImatrixFormat::Dat => report_file::publish(vec![(target, file.to_dat())]),
    }
}

fn report(args: &Args, file: &ImatrixFile, collected: Option<&Collected>) -> ImatrixReport {
    let mut summary = summarize(file);
    let entries = file.entries.iter().map(|(name, entry)| ImatrixEntryReport {
        tensor: name.clone(),
        n_columns: entry.n_columns(),
        counts: entry.counts.clone(),
        unused_experts: entry.unused().collect(),
        statistics: summary.entries.remove(name),
    });
    ImatrixReport {
        schema_version: SCHEMA_VERSION,
        provenance: None,
        path: None,
        datasets: file.datasets.iter().map(ToString::to_string).collect(),
        n_ctx: match file.chunk_size {
            0 => args.ctx_size,
            size => size,
        },
        n_chunks: file.n_chunks,
        n_chunks_evaluated: collected.map_or(0, |run| run.n_chunks - run.n_resumed),
        perplexity: collected.and_then(|run| run.perplexity),
        entries: entries.collect(),
        layers: summary.layers,
    }
}
