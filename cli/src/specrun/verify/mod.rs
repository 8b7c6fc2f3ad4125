//! `specrun verify`: proves that speculation changes only the speed, and that drafts are accepted.

mod answers;
mod cases;
mod findings;
mod html;
mod page;
mod server;
mod stamp;
mod surface;
mod text;
mod work;

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use kernels::cpu::{Cpu, CpuConfig};
use runner::chat::ChatMode;
use schemas::report::{Provenance, Verdict, VerifyReport};
use schemas::{gguf, input};
use verify::checks::{Baseline, GivenText, InvarianceConfig, Matrix, SurfaceConfig, Tolerances};
use verify::prompts::{self, Prompt, PromptLines};
use verify::{DecodeOptions, Machine, Stage, VerifyConfig};

use super::chat::ChatArgs;
use super::device::{Device, DeviceConfig, checked};
use super::generate::N_PREDICT;
use super::model::{ContextArgs, LengthArgs, ModelArgs, ParallelArgs, SampleArgs, SpecArgs};
use super::page::{Pages, Render};
use crate::embedded;
use crate::output::{self, Format};
use crate::provenance::provenance;
use crate::report_file::OverwriteArgs;

use stamp::Stamp;
use text::Text;

/// Prove that speculation changes only the speed, and that drafts are accepted
///
/// The preflight checks keys and weights; a model that cannot work is not run. Each prompt is then
/// decoded without drafts, with each speculator alone, and with all speculators of --spec-type as one
/// chain. Tokens must be equal, and the logits of every committed position bit-identical. Without
/// --spec-type, every speculator that the files support is verified. A model without speculators, or
/// with --spec-type none, is verified alone: preflight, finite logits, invariance, baseline.
///
/// A head whose drafts are all rejected would pass these checks, so the acceptance rate must reach a
/// minimum: --min-accept, else at the first draft position 0.4 for draft-mtp, 0.3 for draft-eagle3 and
/// draft-simple. A speculator that drafted no token is reported as not exercised; with --strict it
/// fails. If a check fails, it is named and the exit code is 1. docs/verify.md lists the kinds of damage that
/// are detected.
///
/// With --url, a running server is verified instead of files: equal requests must give equal texts, alone,
/// at the same time, streamed, and with and without drafts. docs/serving.md describes the checks.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: server::ServerArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    chat: ChatArgs,
    /// File of prompts (JSON lines)
    ///
    /// Each line has id, prompt or messages, and optionally kind and n_predict [default: ten built-in prompts]
    #[arg(short = 'f', long, value_name = "FILE.jsonl")]
    prompts: Option<PathBuf>,
    #[command(flatten)]
    length: LengthArgs,
    /// Minimum acceptance rate of every speculator, over all drafted tokens
    #[arg(long, value_name = "R", value_parser = acceptance)]
    min_accept: Option<f64>,
    /// Fail if a speculator, or the chain, drafts no token
    #[arg(long)]
    strict: bool,
    /// Minimum number of drafted tokens of every speculator and chain
    ///
    /// [default: 0, with --strict 1]
    #[arg(long, value_name = "N")]
    min_drafted: Option<u64>,
    #[command(flatten)]
    sample: SampleArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
    /// Checks to run, separated by commas [default: all but agreement; for a model of 4 GiB or more: fit,agreement]
    ///
    ///   fit         keys and weights of the files
    ///   identity    tokens and logits with and without drafts
    ///   invariance  logits in other batches, after rollbacks, on other thread counts
    ///   acceptance  acceptance rates against their floors
    ///   speed       speed with and without drafts, measured alternately
    ///   agreement   drafts at every position of texts that are written once: predicts acceptance without decoding
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = stage)]
    check: Vec<Stage>,
    /// Text whose positions the check agreement compares
    ///
    /// The target only reads it, in up to 32 pieces of 256 tokens [default: the target continues the prompts]
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    text: Option<PathBuf>,
    /// Also decode with other draft lengths, numbers of sequences, and sampling
    ///
    /// quick runs 3 combinations on the beginning of the texts; full runs all 36, and a longer invariance check
    #[arg(long, value_name = "quick|full", value_parser = matrix)]
    matrix: Option<Matrix>,
    /// Context lengths at which acceptance and speed are also measured, such as 128,2k,8k
    ///
    /// k is 1024. Prompts are extended at their beginning, by the other prompts or by --text. At most two prompts of
    /// each kind are decoded [default with --temps: 256]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = context, conflicts_with = "url")]
    contexts: Vec<usize>,
    /// Sampling temperatures at which acceptance and speed are also measured, such as 0,0.8
    ///
    /// [default with --contexts: 0]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = temperature, conflicts_with = "url")]
    temps: Vec<f32>,
    /// Minimum speedup over decoding without drafts, for every speculator
    ///
    /// The median of at least five runs is compared. Above 1, the 95 % interval of the mean must also be above 1
    #[arg(long, value_name = "R", value_parser = positive)]
    min_speedup: Option<f64>,
    /// Earlier report of the same prompts to compare with
    ///
    /// A measure that got worse by more than its tolerance fails (see --tolerance)
    #[arg(long, value_name = "REPORT.json")]
    baseline: Option<PathBuf>,
    /// Tolerances of --baseline as NAME=NUMBER, separated by commas
    ///
    ///   kl          maximum mean KL divergence, in nats [default: 0.1]
    ///   top         minimum share of positions with the same most likely token [default: 0.85]
    ///   perplexity  maximum factor of the perplexity [default: 1.1]
    ///   acceptance  maximum decrease of acceptance rates [default: 0.03]
    ///   text        maximum share of prompts with another text [default: 1]
    ///   speed       minimum factor of the speed, on the same machine; 0 to disable [default: 0.5]
    #[arg(verbatim_doc_comment)]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "baseline", value_parser = tolerance)]
    tolerance: Vec<(String, f64)>,
    /// Write the result into the model, if all checks pass
    ///
    /// Keys specconv.verify.* state what was proved and of which tensors; inspect compares them with the file, and
    /// draft-flags prints the flags of the fastest speculator. Other readers ignore them. Tensors stay as they are
    #[arg(long, conflicts_with = "url")]
    stamp: bool,
    /// Also write the result as JSON, usable with --baseline later
    #[arg(long, value_name = "OUT.json")]
    report: Option<PathBuf>,
    /// Also write the checks as JUnit XML
    #[arg(long, value_name = "OUT.xml")]
    junit: Option<PathBuf>,
    /// Also write findings and failed checks as SARIF, for code scanning services
    #[arg(long, value_name = "OUT.sarif", conflicts_with = "url")]
    sarif: Option<PathBuf>,
    /// Also write findings and failed checks as GitHub annotations; - prints them
    #[arg(long, value_name = "OUT.txt", conflicts_with = "url")]
    github: Option<PathBuf>,
    /// Also write a Markdown summary; appended if it is $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "OUT.md")]
    markdown: Option<PathBuf>,
    /// Also write an HTML page: is it safe to use, is it faster, with plots
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn matrix(name: &str) -> Result<Matrix, String> {
    match name {
        "quick" => Ok(Matrix::Quick),
        "full" => Ok(Matrix::Full),
        _ => Err("expected quick or full".to_owned()),
    }
}

/// Parses a number of tokens, where k is 1024.
fn context(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let n = digits.parse().ok().and_then(|n: usize| n.checked_mul(unit));
    n.filter(|n| (1..=MAX_CONTEXT).contains(n))
        .ok_or_else(|| format!("expected 1 to {MAX_CONTEXT} tokens, such as 512 or 8k"))
}

/// Longest context of the surface, in tokens.
const MAX_CONTEXT: usize = 1 << 24;
/// Tokens to generate for each prompt of the surface, unless -n is given.
const SURFACE_N_PREDICT: usize = 48;

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("expected a temperature from 0 to 100".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if f64::is_finite(value) && value > 0.0 => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

fn acceptance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

/// Parses one tolerance.
fn tolerance(text: &str) -> Result<(String, f64), String> {
    let expected = || "expected NAME=NUMBER with kl, top, perplexity, acceptance, text or speed";
    let (name, value) = text.split_once('=').ok_or_else(expected)?;
    let mut tolerances = Tolerances::DEFAULT;
    let known = tolerances.by_name(name).is_some();
    let value = value.parse().ok().filter(|x: &f64| *x >= 0.0 && known);
    let value = value.ok_or_else(expected)?;
    Ok((name.to_owned(), value))
}

fn stage(name: &str) -> Result<Stage, String> {
    let known = Stage::NAMES.iter().find(|(known, _)| *known == name);
    known.map(|&(_, stage)| stage).ok_or_else(|| {
        let names = Stage::NAMES.map(|(name, _)| name).join(", ");
        format!("expected one or more of {names}")
    })
}

/// Prompts of the bundled models, used if no file is given.
const PROMPTS: &str = include_str!("../../../../models/prompts.jsonl");

/// The built-in prompts.
pub(crate) fn built_in_prompts() -> anyhow::Result<Vec<Prompt>> {
    Ok(built_in_lines()?.plain()?)
}

fn built_in_lines() -> anyhow::Result<PromptLines> {
    Ok(prompts::parse_lines(
        Path::new("built-in prompts"),
        PROMPTS,
    )?)
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let lines = lines(args)?;
    if let Some(url) = &args.server.url {
        return server::run(args, url, lines.plain()?);
    }
    let config = args.config(lines)?;
    let pages = args.pages(&config)?;
    let stamp = args.stamp.then(|| Stamp::new(&config)).transpose()?;
    let report = verify_on(args.model.device_config()?, &config)?;
    finish(args, &config, pages, stamp, report)
}

/// Returns the prompts that are verified.
fn lines(args: &Args) -> anyhow::Result<PromptLines> {
    match &args.prompts {
        Some(path) => Ok(prompts::read_lines(path)?),
        None => built_in_lines(),
    }
}

/// Writes and prints the result.
fn finish(
    args: &Args,
    config: &VerifyConfig,
    pages: Pages<VerifyReport>,
    stamp: Option<Stamp>,
    mut report: VerifyReport,
) -> anyhow::Result<Verdict> {
    if let Some(stamp) = stamp {
        stamp.write(config, &report)?;
        // The report is about the file as it is now.
        report.provenance = Some(origin(config)?);
    }
    pages.write(&report)?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(report.verdict)
}

/// Size of a model from which decoding takes too long to be the default, in bytes.
const LARGE_BYTES: u64 = 4 << 30;

impl Args {
    /// Returns the configuration of all checks.
    fn config(&self, lines: PromptLines) -> anyhow::Result<VerifyConfig> {
        let model = self.model.path()?;
        let mut prompts = self.chat.prompts(lines, model, ChatMode::Messages)?;
        for prompt in &mut prompts {
            prompt.n_predict = self.length.n_predict.or(prompt.n_predict);
        }
        let spec_types = self.spec.spec_types()?;
        let mut tolerances = Tolerances::DEFAULT;
        for (name, value) in &self.tolerance {
            if let Some(tolerance) = tolerances.by_name(name) {
                *tolerance = *value;
            }
        }
        let baseline = self.baseline.as_ref();
        let baseline = baseline.map(|path| Baseline::read(path, tolerances));
        let options = DecodeOptions {
            n_parallel: self.parallel.n_seq().min(prompts.len()),
            sample: self.sample.config(),
            ..self.spec.options(&self.model.caches, &self.context)?
        };
        let stages = self.stages(model)?;
        let text = self.text.as_ref();
        let text = text.map(|path| given_text(path)).transpose()?;
        Ok(VerifyConfig {
            model: model.to_path_buf(),
            drafts: self.spec.drafts()?,
            spec_types,
            prompts,
            n_predict: N_PREDICT,
            options,
            matrix: self.matrix.map(|matrix| matrix.config(options)),
            min_accept: self.min_accept,
            min_drafted: self.min_drafted.unwrap_or(u64::from(self.strict)),
            min_speedup: self.min_speedup,
            invariance: match self.matrix {
                Some(Matrix::Full) => InvarianceConfig::FULL,
                _ => InvarianceConfig::QUICK,
            },
            stages,
            text,
            surface: self.surface(),
            baseline: baseline.transpose()?,
            unit: None,
            stop: embedded::is_stopped,
        })
    }

    /// Claims the files of the result.
    fn pages(&self, config: &VerifyConfig) -> anyhow::Result<Pages<VerifyReport>> {
        let inputs = self.inputs(config);
        let formats: [(&Option<PathBuf>, Render<VerifyReport>); 6] = [
            (&self.report, json),
            (&self.junit, page::junit),
            (&self.sarif, findings::sarif),
            (&self.github, findings::github),
            (&self.markdown, page::markdown),
            (&self.html, html::html),
        ];
        Pages::new(&formats, &inputs, self.overwrite.existing())
    }

    /// Returns the files that are read.
    fn inputs<'a>(&'a self, config: &'a VerifyConfig) -> Vec<&'a Path> {
        let inputs = [&config.model].into_iter().chain(config.drafts.paths());
        let inputs = inputs.chain(&self.prompts);
        let inputs = inputs.chain(&self.baseline).chain(&self.text);
        inputs.map(PathBuf::as_path).collect()
    }

    /// Returns the context lengths and temperatures to measure.
    fn surface(&self) -> Option<SurfaceConfig> {
        if self.contexts.is_empty() && self.temps.is_empty() {
            return None;
        }
        let (mut contexts, mut temperatures) = (self.contexts.clone(), self.temps.clone());
        if contexts.is_empty() {
            contexts.push(256);
        }
        if temperatures.is_empty() {
            temperatures.push(0.0);
        }
        contexts.sort_unstable();
        contexts.dedup();
        temperatures.sort_by(f32::total_cmp);
        temperatures.dedup();
        let n_predict = self
            .length
            .n_predict
            .map_or(SURFACE_N_PREDICT, NonZeroUsize::get);
        Some(SurfaceConfig {
            contexts,
            temperatures,
            n_predict,
        })
    }

    /// Returns the checks to run.
    fn stages(&self, model: &Path) -> anyhow::Result<Vec<Stage>> {
        if !self.check.is_empty() {
            let has_agreement = self.check.contains(&Stage::Agreement);
            ensure!(
                self.text.is_none() || has_agreement || self.surface().is_some(),
                "--text without the check agreement has no effect, expected --check with agreement"
            );
            return Ok(self.check.clone());
        }
        let needs_texts = self.stamp
            || self.strict
            || self.min_drafted.is_some()
            || self.min_speedup.is_some()
            || self.matrix.is_some()
            || self.baseline.is_some();
        let parts = gguf::part_paths(model)?;
        let sizes = parts.iter().map(|part| Ok(fs::metadata(part)?.len()));
        let n_bytes: u64 = sizes.sum::<anyhow::Result<u64>>()?;
        let mut stages = match n_bytes >= LARGE_BYTES && !needs_texts {
            true => {
                output::note(&format_args!(
                    "{}: {}, so that only fit and agreement are checked; --check \
                     fit,identity,invariance,acceptance,speed decodes with drafts",
                    model.display(),
                    output::bytes(n_bytes)
                ));
                Stage::LARGE.to_vec()
            }
            false => Stage::DEFAULT.to_vec(),
        };
        let is_filler = self.surface().is_some();
        if self.text.is_some() && !is_filler && !stages.contains(&Stage::Agreement) {
            stages.push(Stage::Agreement);
        }
        Ok(stages)
    }
}

/// Reads the text of the agreement check.
fn given_text(path: &Path) -> anyhow::Result<GivenText> {
    let name = path.display().to_string();
    let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST);
    Ok(GivenText {
        text: text.with_context(|| name.clone())?,
        name,
    })
}

fn json(report: &VerifyReport) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Additional thread counts of the invariance check: one thread, and a count that divides no dimension
/// evenly.
const OTHER_THREADS: [usize; 2] = [1, 3];

/// Verifies on a device.
pub(crate) fn verify_on(
    device: DeviceConfig,
    config: &VerifyConfig,
) -> anyhow::Result<VerifyReport> {
    let machine = |backend: Arc<Cpu>| Machine {
        n_threads: backend.threads(),
        backend,
    };
    let opened = Device::open(device)?;
    let mut others = Vec::new();
    if let (Device::Cpu(cpu), true) = (&opened, config.stages.contains(&Stage::Invariance)) {
        for threads in OTHER_THREADS.into_iter().filter(|&n| n != cpu.threads()) {
            let cpu = CpuConfig {
                threads,
                ..device.cpu
            };
            others.push(machine(DeviceConfig::cpu(cpu).open_cpu()?));
        }
    }
    let report = match &opened {
        Device::Cpu(cpu) => verify::verify(&machine(Arc::clone(cpu)), &others, config)?,
        Device::Cuda(cuda) => {
            let backend = Arc::clone(cuda);
            let n_threads = opened.n_threads();
            let report = verify::verify(&Machine { backend, n_threads }, &[], config);
            checked(&**cuda, report.map_err(Into::into))?
        }
    };
    Ok(VerifyReport {
        provenance: Some(origin(config)?),
        ..report
    })
}

fn origin(config: &VerifyConfig) -> anyhow::Result<Provenance> {
    let models = [&config.model].into_iter().chain(&config.drafts.models);
    provenance(models.map(PathBuf::as_path), Some(&config.prompts))
}

pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "FAIL",
    }
}
