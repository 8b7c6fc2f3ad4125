//! `specrun kld`: the divergence of quantized models from their base.

mod html;
mod work;

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use minijinja::context;
use minijinja::value::Serde;
use runner::model_files::{DraftFiles, Files, ModelFile};
use schemas::input;
use schemas::outfile::OutputNames;
use schemas::report::{Distribution, Estimate, KldReport, ModelDivergence, Verdict};
use verify::divergence::logits_file::LogitsReader;
use verify::divergence::{Base, KldConfig, divergence};
use verify::perplexity;

use super::device::on_device;
use super::model::{CacheArgs, MachineArgs, SpecialArgs};
use super::page::{Pages, decimal, estimate, render};
use crate::hint::Hinted;
use crate::output::{self, Format};
use crate::provenance::provenance;
use crate::report_file::{OverwriteArgs, ReportFile};

/// Measure the divergence of quantized models from their base on a text
///
/// All models evaluate the text together, so no file of logits is needed. The numbers are those of
/// llama-perplexity --kl-divergence: over complete chunks, the second half of each chunk is scored.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The base model, then the models to compare with it; without a base if --base-logits is given
    #[arg(value_name = "MODEL.gguf", required = true)]
    models: Vec<PathBuf>,
    /// Text file
    #[arg(
        short,
        long,
        value_name = "TEXT.txt",
        required_unless_present = "base_logits"
    )]
    file: Option<PathBuf>,
    /// Context size in tokens, at least 4: the text is scored in chunks of this length [default: 512]
    #[arg(short, long, value_name = "N", conflicts_with = "base_logits", value_parser = clap::value_parser!(u32).range(4..))]
    ctx_size: Option<u32>,
    /// Maximum number of chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Logits and tokens of the base, as llama-perplexity saves them
    #[arg(
        long,
        visible_alias = "kl-divergence-base",
        value_name = "LOGITS",
        conflicts_with = "file"
    )]
    base_logits: Option<PathBuf>,
    /// Save the logits of the base for llama-perplexity and --base-logits
    ///
    /// Two bytes per scored token and entry of the vocabulary: 76 MB per chunk of 512 for 150,000 entries
    #[arg(
        long,
        visible_alias = "save-all-logits",
        value_name = "LOGITS",
        conflicts_with = "base_logits"
    )]
    save_logits: Option<PathBuf>,
    #[command(flatten)]
    special: SpecialArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    caches: CacheArgs,
    /// Also write a Markdown table for a model card; appended if it is $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "OUT.md")]
    markdown: Option<PathBuf>,
    /// Also write a web page with the distributions plotted: one file without scripts
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const N_CTX: u32 = 512;

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let pages = args.pages()?;
    if let Some(path) = &args.save_logits {
        for (flag, page) in [("--markdown", &args.markdown), ("--html", &args.html)] {
            ensure!(
                page.as_ref() != Some(path),
                "{}: used for {flag} and --save-logits, expected different files",
                path.display()
            );
        }
        let mut names = OutputNames::new(args.inputs(), args.overwrite.existing());
        ReportFile::regular(path, &mut names)?;
    }
    let opened = Opened::new(args)?;
    let (base, compared) = opened.models()?;
    let device = args.machine.device(&args.models[0])?;
    let report = on_device!(&device, backend => {
        divergence(backend, base, compared, &opened.text, &opened.config).map_err(Into::into)
    })?;
    finish(args, pages, report)
}

impl Args {
    /// Returns the files that are read.
    fn inputs(&self) -> Vec<&Path> {
        let inputs = self.models.iter().chain(&self.base_logits);
        inputs.chain(&self.file).map(PathBuf::as_path).collect()
    }

    /// Claims the files of the result.
    fn pages(&self) -> anyhow::Result<Pages<KldReport>> {
        Pages::new(
            &[(&self.markdown, markdown), (&self.html, html::html)],
            &self.inputs(),
            self.overwrite.existing(),
        )
    }
}

/// Writes and prints the result.
fn finish(args: &Args, pages: Pages<KldReport>, mut report: KldReport) -> anyhow::Result<Verdict> {
    if args.json || args.markdown.is_some() || args.html.is_some() {
        report.provenance = Some(provenance(args.models.iter().map(PathBuf::as_path), None)?);
    }
    pages.write(&report)?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// The models and the text of a comparison.
struct Opened {
    /// The base, if it is a model, then the models to compare.
    models: Vec<ModelFile>,
    /// File with the logits of the base.
    base_logits: Option<PathBuf>,
    text: perplexity::Text,
    config: KldConfig,
}

impl Opened {
    fn new(args: &Args) -> anyhow::Result<Opened> {
        let (first, others) = args.models.split_first().context("no model")?;
        let files = Files::open(first, &DraftFiles::default())?;
        let opened = others.iter().map(|path| ModelFile::new(path));
        let opened: Vec<ModelFile> = opened.collect::<Result<_, _>>()?;
        same_vocabulary(&files.model, &opened)?;
        let (n_ctx, text) = match (&args.base_logits, &args.file) {
            (Some(path), _) => {
                let reader = LogitsReader::open(path)?;
                let n_vocab = files.model.hparams.n_vocab as usize;
                ensure!(
                    reader.header.n_vocab == n_vocab,
                    "{}: a vocabulary of {}, expected the {n_vocab} tokens of {}",
                    path.display(),
                    reader.header.n_vocab,
                    first.display()
                );
                let n_ctx = reader.header.n_ctx;
                (n_ctx, text(path, &files, reader.header.tokens))
            }
            (None, Some(path)) => {
                let content = input::read_text(path, input::Kind::Stream, input::MAX_WHOLE);
                let content = content.with_context(|| path.display().to_string())?;
                let tokens = files.tokenizer.encode(&content, args.special.config());
                let n_ctx = args.ctx_size.unwrap_or(N_CTX) as usize;
                (n_ctx, text(path, &files, tokens))
            }
            (None, None) => unreachable!("clap requires one of them"),
        };
        if args.base_logits.is_none() && opened.is_empty() {
            let hint = format!("specrun kld {} QUANTIZED.gguf -f TEXT.txt", first.display());
            return Err(
                Hinted::new("one model, expected a base and models to compare", hint).into(),
            );
        }
        Ok(Opened {
            models: [files.model].into_iter().chain(opened).collect(),
            base_logits: args.base_logits.clone(),
            text,
            config: KldConfig {
                n_ctx,
                n_chunks_max: args.chunks.map(|n| n as usize),
                types: args.caches.types(),
                save: args.save_logits.clone(),
            },
        })
    }

    /// Returns the base and the models to compare with it.
    fn models(&self) -> anyhow::Result<(Base<'_>, &[ModelFile])> {
        match (&self.base_logits, self.models.as_slice()) {
            (Some(path), models) => Ok((Base::Logits(LogitsReader::open(path)?), models)),
            (None, [base, compared @ ..]) => Ok((Base::Model(base), compared)),
            (None, []) => unreachable!("clap requires a model"),
        }
    }
}

/// Returns a text of these tokens.
fn text(path: &Path, files: &Files, tokens: Vec<u32>) -> perplexity::Text {
    let bos = files.tokenizer.bos();
    perplexity::Text {
        name: path.display().to_string(),
        // The text begins with BOS only if the model requires it.
        bos: bos.filter(|bos| tokens.first() == Some(bos)),
        tokens,
    }
}

/// Rejects models whose tokens differ from those of the first one.
fn same_vocabulary(first: &ModelFile, others: &[ModelFile]) -> anyhow::Result<()> {
    let expected = first.vocabulary()?;
    for other in others {
        let found = other.vocabulary()?;
        ensure!(
            found == expected && other.hparams.n_vocab == first.hparams.n_vocab,
            "{}: a vocabulary of {} tokens, expected the {} of {}: only models with the same tokens can be \
             compared",
            other.path.display(),
            found.n_tokens,
            expected.n_tokens,
            first.path.display()
        );
    }
    Ok(())
}

fn markdown(report: &KldReport) -> anyhow::Result<String> {
    let shown = context! {
        report => Serde(report),
        rows => report.models.iter().map(row).collect::<Vec<_>>(),
    };
    render("kld.md", include_str!("table.md.jinja"), shown)
}

/// The columns of a model card's table.
fn row(model: &ModelDivergence) -> Vec<String> {
    let at = |percent| model.kld.percentile(percent).unwrap_or_default();
    vec![
        file_name(&model.model),
        output::bytes(model.size_bytes),
        format!("{:.2}", model.bits_per_weight),
        estimate(&model.perplexity, 4),
        format!("{:.4}", model.perplexity_ratio.value),
        estimate(&model.kld.mean, 6),
        format!("{:.4}", at(50.0)),
        format!("{:.4}", at(99.0)),
        format!("{:.3} %", model.delta_p_rms_percent.value),
        format!("{:.2} %", 100.0 * model.same_top.value),
    ]
}

/// Returns the name of a file without its folder.
fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Text output of the report, with llama-perplexity's names.
struct Text<'a>(&'a KldReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        write!(
            f,
            "base {}: {} tokens in {} chunks of {}",
            r.base, r.n_scored, r.n_chunks, r.n_ctx
        )?;
        for model in &r.models {
            write!(f, "\n\n{}", model.model)?;
            let mut line = |name: &str, value: String| write!(f, "\n  {name:<30} {value}");
            line("Mean PPL(Q)", estimate(&model.perplexity, 6))?;
            line("Mean PPL(base)", estimate(&r.base_perplexity, 6))?;
            if let Some(correlation) = model.correlation {
                let percent = format!("{:.2}%", 100.0 * correlation);
                line("Cor(ln(PPL(Q)), ln(PPL(base)))", percent)?;
            }
            line(
                "Mean ln(PPL(Q)/PPL(base))",
                estimate(&model.ln_perplexity_ratio, 6),
            )?;
            line(
                "Mean PPL(Q)/PPL(base)",
                estimate(&model.perplexity_ratio, 6),
            )?;
            line(
                "Mean PPL(Q)-PPL(base)",
                estimate(&model.perplexity_difference, 6),
            )?;
            lines(&mut line, "KLD", &model.kld, "")?;
            lines(&mut line, "Δp", &model.delta_p_percent, " %")?;
            line(
                "RMS Δp",
                format!("{} %", estimate(&model.delta_p_rms_percent, 3)),
            )?;
            let percent = Estimate {
                value: 100.0 * model.same_top.value,
                standard_error: 100.0 * model.same_top.standard_error,
            };
            line("Same top p", format!("{} %", estimate(&percent, 3)))?;
        }
        Ok(())
    }
}

/// Prints a distribution.
fn lines(
    line: &mut impl FnMut(&str, String) -> fmt::Result,
    name: &str,
    distribution: &Distribution,
    unit: &str,
) -> fmt::Result {
    line(
        &format!("Mean {name}"),
        format!("{}{unit}", estimate(&distribution.mean, 6)),
    )?;
    for percentile in &distribution.percentiles {
        let label = match percentile.percent {
            100.0 => format!("Maximum {name}"),
            50.0 => format!("Median {name}"),
            0.0 => format!("Minimum {name}"),
            percent => format!("{percent:.1}% {name}"),
        };
        line(&label, decimal(percentile.value, 6) + unit)?;
    }
    Ok(())
}
