//! `specrun verify`: proves that speculation changes nothing but the speed, and that it drafts.

mod cases;
mod page;

use std::fmt::{self, Display};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use kernels::cpu::{Cpu, CpuConfig};
use runner::chat::ChatMode;
use runner::prompts::{self, Prompt, PromptLines};
use runner::verify::{Baseline, InvarianceConfig, Matrix, Tolerances};
use runner::{Machine, Stage, VerifyConfig, Way};
use schemas::report::{
    BaselineReport, FitFinding, Severity, SpeculatorVerdict, Verdict, VerifyReport, VerifyRun,
};

use super::chat::ChatArgs;
use super::device::{Device, DeviceConfig, whole};
use super::generate::N_PREDICT;
use super::model::{ModelArgs, SampleArgs, SpecArgs};
use super::page::{Pages, Render, number};
use crate::output::{self, Format};

use cases::measure_name;

/// Prove that speculation changes nothing but the speed, and that it drafts
///
/// First the files are looked at: keys against tensors, values that no working model has. What
/// cannot work is not run. Then each prompt is decoded without drafts, and under each speculator by
/// itself; without --spec-type under the one that the files make possible. Tokens must be equal, and
/// the logits of every committed position bit-identical. A dead or wrongly grafted head would
/// pass that, so acceptance must reach a floor: --min-accept for all, else at the first draft
/// position 0.4 for draft-mtp, 0.3 for draft-eagle3 and draft-simple. Exits with 1 if a check
/// fails, and names it. docs/verify.md has what finds which damage.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: specrun verify -m model-Q4_K_M.gguf --report verify.json")]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    chat: ChatArgs,
    /// File of prompts: JSON lines with id, prompt or messages, and if wanted kind and n_predict
    /// [default: ten built-in prompts]
    #[arg(short = 'f', long, value_name = "FILE.jsonl")]
    prompts: Option<PathBuf>,
    /// Tokens to write at most [default: a prompt's own n_predict, else 128]
    #[arg(
        short,
        long,
        value_name = "N",
        visible_alias = "predict",
        env = "LLAMA_ARG_N_PREDICT",
        hide_env_values = true
    )]
    n_predict: Option<NonZeroUsize>,
    /// Acceptance that every speculator must reach over all drafted tokens
    #[arg(long, value_name = "R", value_parser = acceptance)]
    min_accept: Option<f64>,
    #[command(flatten)]
    sample: SampleArgs,
    /// Prompts to decode at once; -np for short
    #[arg(long, value_name = "N", env = "LLAMA_ARG_N_PARALLEL", hide_env_values = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
    /// What to check, separated by commas: fit (the files), identity (tokens and logits with and
    /// without drafts), acceptance, invariance (logits however they are computed) [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = stage)]
    check: Vec<Stage>,
    /// Also decode with drafts of other lengths, several sequences at once, and sampled tokens:
    /// quick is three ways on the beginning of the texts, full all of 36, and a longer invariance
    /// check
    #[arg(long, value_name = "quick|full", value_parser = matrix)]
    matrix: Option<Matrix>,
    /// Tokens a second that every speculator must reach, over those without drafts
    #[arg(long, value_name = "R", value_parser = positive)]
    min_speedup: Option<f64>,
    /// Earlier report of the same prompts, such as of the file before it was quantized: what is
    /// worse now, beyond the tolerance, fails
    #[arg(long, value_name = "REPORT.json")]
    baseline: Option<PathBuf>,
    /// How much worse, as NAME=NUMBER, separated by commas: kl (mean divergence) 0.1, top (share of
    /// positions with the same likeliest token) 0.85, perplexity (factor) 1.1, acceptance (fall)
    /// 0.03, text (share of prompts with another text) 1, speed (factor, on the same machine) 0.5 or 0 for none
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "baseline", value_parser = tolerance)]
    tolerance: Vec<(String, f64)>,
    /// Also write the result to a file, as JSON; a later one can be measured against it
    #[arg(long, value_name = "OUT.json")]
    report: Option<PathBuf>,
    /// Also write the checks to a file, as JUnit XML
    #[arg(long, value_name = "OUT.xml")]
    junit: Option<PathBuf>,
    /// Also write a summary to a file, as Markdown that code hosts show beside a job
    #[arg(long, value_name = "OUT.md")]
    markdown: Option<PathBuf>,
    /// Also write one page with plots to a file
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
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

/// One tolerance by its name.
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
        format!("expected some of {names}")
    })
}

/// Prompts of the bundled models, for whoever brings none.
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
    let lines = match &args.prompts {
        Some(path) => prompts::read_lines(path)?,
        None => built_in_lines()?,
    };
    let model = args.model.path()?;
    let mut prompts = args.chat.prompts(lines, model, ChatMode::Messages)?;
    for prompt in &mut prompts {
        prompt.n_predict = args.n_predict.or(prompt.n_predict);
    }
    let spec_types = args.spec.spec_types()?;
    ensure!(
        spec_types.as_ref().is_none_or(|types| !types.is_empty()),
        "--spec-type none: expected a speculator to verify"
    );
    let mut tolerances = Tolerances::DEFAULT;
    for (name, value) in &args.tolerance {
        if let Some(tolerance) = tolerances.by_name(name) {
            *tolerance = *value;
        }
    }
    let baseline = args.baseline.as_ref();
    let baseline = baseline.map(|path| Baseline::read(path, tolerances));
    let way = Way {
        drafting: args.spec.drafting()?,
        n_parallel: usize::from(args.parallel).min(prompts.len()),
        sample: args.sample.config(),
        caches: args.spec.caches(&args.model.caches),
    };
    let stages = match args.check.as_slice() {
        [] => Stage::NAMES.map(|(_, stage)| stage).to_vec(),
        stages => stages.to_vec(),
    };
    let config = VerifyConfig {
        model: model.to_path_buf(),
        drafts: args.spec.drafts()?,
        spec_types: spec_types.unwrap_or_default(),
        prompts,
        n_predict: N_PREDICT,
        way,
        matrix: args.matrix.map(|matrix| matrix.config(way)),
        min_accept: args.min_accept,
        min_speedup: args.min_speedup,
        invariance: match args.matrix {
            Some(Matrix::Full) => InvarianceConfig::FULL,
            _ => InvarianceConfig::QUICK,
        },
        stages,
        baseline: baseline.transpose()?,
    };
    let inputs = [&config.model].into_iter().chain(config.drafts.paths());
    let inputs = inputs.chain(&args.prompts).chain(&args.baseline);
    let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
    let formats: [(&Option<PathBuf>, Render<VerifyReport>); 4] = [
        (&args.report, json),
        (&args.junit, page::junit),
        (&args.markdown, page::markdown),
        (&args.html, page::html),
    ];
    let pages = Pages::new(&formats, &inputs)?;
    let report = verify_on(args.model.device_config()?, &config)?;
    pages.write(&report)?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(report.verdict)
}

fn json(report: &VerifyReport) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Numbers of threads on which the invariance check runs besides: one, and one that divides
/// nothing evenly.
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
            others.push(machine(DeviceConfig::cpu(cpu).processor()?));
        }
    }
    match &opened {
        Device::Cpu(cpu) => Ok(runner::verify(&machine(Arc::clone(cpu)), &others, config)?),
        Device::Cuda(cuda) => {
            let backend = Arc::clone(cuda);
            let n_threads = opened.n_threads();
            let report = runner::verify(&Machine { backend, n_threads }, &[], config);
            whole(&**cuda, report.map_err(Into::into))
        }
    }
}

/// The report as people read it.
struct Text<'a>(&'a VerifyReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        if let Some(fit) = &r.fit {
            writeln!(
                f,
                "fit: {} tensors, {}",
                fit.n_tensors,
                verdict(fit.verdict)
            )?;
            let odd = fit.findings.iter().filter(|x| x.severity == Severity::Odd);
            for FitFinding {
                file,
                subject,
                message,
                ..
            } in odd
            {
                writeln!(f, "  odd, {file}: {subject}: {message}")?;
            }
        }
        if !r.runs.is_empty() {
            self.runs(f)?;
        }
        r.speculators
            .iter()
            .try_for_each(|speculator| totals(f, speculator))?;
        for cell in &r.matrix {
            let shape = &cell.shape;
            writeln!(
                f,
                "{}, drafts of {}, {} at once, temperature {}: {} of {} prompts identical",
                cell.speculator,
                shape.n_draft_max,
                shape.n_parallel,
                shape.temperature,
                cell.n_identical,
                cell.n_prompts
            )?;
        }
        if let Some(i) = &r.invariance {
            writeln!(
                f,
                "\ninvariance: {} rows of {} texts in {} passes on {:?} threads, {} differ, {}",
                i.n_rows,
                i.n_texts,
                i.n_passes,
                i.threads,
                i.n_different,
                verdict(i.verdict)
            )?;
        }
        if let Some(baseline) = &r.baseline {
            measures(f, baseline)?;
        }
        for check in &r.failed {
            let subjects = [
                check.speculator.clone(),
                check.prompt_id.as_ref().map(|id| format!("prompt {id}")),
            ];
            let subjects: String = subjects
                .iter()
                .flatten()
                .map(|s| format!(", {s}"))
                .collect();
            let kind = format!("{:?}", check.check).to_lowercase();
            writeln!(f, "\nFAILED {kind}{subjects}: {}", check.message)?;
            for cause in &check.likely_causes {
                writeln!(f, "  likely cause: {cause}")?;
            }
        }
        write!(f, "\nverdict: {}", verdict(r.verdict))
    }
}

impl Text<'_> {
    /// A line for each prompt under each speculator.
    fn runs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let name = |run: &VerifyRun| format!("{} {}", run.prompt_id, run.speculator);
        let width = r.runs.iter().map(|run| name(run).len()).max().unwrap_or(0);
        writeln!(
            f,
            "{:<width$}  tokens  logits  written  drafted  accepted   rate  tokens/pass  last logits",
            "prompt"
        )?;
        for run in &r.runs {
            let c = &run.counters;
            writeln!(
                f,
                "{:<width$}  {:<6}  {:<6}  {:>7}  {:>7}  {:>8}  {:>5}  {:>11}  {}",
                name(run),
                same(run.tokens_identical),
                same(run.logits_identical),
                c.n_tokens,
                c.n_drafted,
                c.n_accepted,
                number(c.acceptance, 3),
                number(c.tokens_per_target_pass, 2),
                run.last_logits_hash
            )?;
        }
        Ok(())
    }
}

/// What was compared with an earlier report.
fn measures(f: &mut fmt::Formatter<'_>, b: &BaselineReport) -> fmt::Result {
    writeln!(
        f,
        "\nagainst {} ({}): {} positions of {} prompts, {} with the same text",
        b.report, b.model, b.n_positions, b.n_prompts, b.n_same_text
    )?;
    for m in &b.measures {
        let place = m
            .draft_position
            .map_or(String::new(), |i| format!(" at {i}"));
        let subject = m.speculator.as_deref().unwrap_or("target");
        let name = format!("{subject} {}{place}", measure_name(m.kind));
        let held = match m.holds {
            true => "held",
            false => "MISSED",
        };
        writeln!(
            f,
            "  {name:<32}  was {:>9.4}  now {:>9.4}  limit {:>9.4}  {held}",
            m.baseline, m.found, m.limit
        )?;
    }
    Ok(())
}

/// Places in the draft that the text shows; the report has all.
const MAX_PLACES: usize = 8;

fn totals(f: &mut fmt::Formatter<'_>, s: &SpeculatorVerdict) -> fmt::Result {
    let c = &s.counters;
    writeln!(
        f,
        "\n{}: {} of {} prompts identical, {}",
        s.name,
        s.n_identical,
        s.n_prompts,
        verdict(s.verdict)
    )?;
    writeln!(
        f,
        "  drafted {}, accepted {}, acceptance {}, {} tokens/pass, {} tok/s, {} times plain",
        c.n_drafted,
        c.n_accepted,
        number(c.acceptance, 3),
        number(c.tokens_per_target_pass, 2),
        number(c.tokens_per_s, 1),
        number(s.speedup, 2)
    )?;
    let places = c.by_draft_position.iter().take(MAX_PLACES);
    let places: Vec<String> = places.map(|place| number(place.acceptance, 3)).collect();
    let more = match c.by_draft_position.len() > MAX_PLACES {
        true => " ...",
        false => "",
    };
    let places = places.join(" ");
    writeln!(f, "  acceptance by draft position: {places}{more}")?;
    let lengths = c.accepted_lengths.iter().enumerate();
    let lengths = lengths.filter(|&(_, &n)| n > 0);
    let lengths: Vec<String> = lengths.map(|(k, n)| format!("{k}: {n}")).collect();
    writeln!(f, "  passes by accepted tokens: {}", lengths.join(", "))?;
    if let Some(floor) = &s.floor {
        let held = match s.floor_held {
            true => "held",
            false => "missed",
        };
        writeln!(
            f,
            "  floor {:.3}, found {}: {held}",
            floor.acceptance,
            number(floor.measured, 3)
        )?;
    }
    Ok(())
}

fn same(identical: bool) -> &'static str {
    match identical {
        true => "same",
        false => "DIFFER",
    }
}

pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "FAIL",
    }
}
