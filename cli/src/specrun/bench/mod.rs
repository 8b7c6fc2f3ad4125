//! `specrun bench`: the cost of forward passes and the break-even of drafting, or speed per kind of
//! task.

mod html;
mod page;
pub(super) mod tasks;

use std::env;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::backend::Backend;
use runner::model_files::{self, DraftFiles, Files};
use schemas::report::{BenchReport, Provenance, Verdict};
use verify::bench::{BenchConfig, bench};
use verify::prefill::prefill;
use verify::prompts::Prompt;

use super::chat::ChatArgs;
use super::device::on_device;
use super::model::{CacheArgs, ContextArgs, LengthArgs, MachineArgs, SampleArgs, SpecArgs};
use super::model_file::TargetArgs;
use super::page::prefetching;
use crate::hint::Hinted;
use crate::output::{self, Format};
use crate::provenance::provenance;

use page::PageArgs;

/// Measure the cost of passes over 1 to 32 tokens and the break-even of drafting
///
/// A draft of n tokens is verified by one pass over n + 1. If such a pass costs r times a pass over one
/// token, drafting pays if more than r - 1 draft tokens are accepted per pass. The cost of the drafter
/// comes on top.
///
/// The decoding speed is printed with its share of the memory's read bandwidth: the bytes of weights
/// read per token, relative to the rate at which the same threads read memory in this run.
///
/// With --tasks: speed and acceptance on ten kinds of task, with the columns and names of the
/// community's mtp-bench script. After a warm-up, runs with and without drafts alternate; the median and
/// the range are reported. Both generate the same text. Prompts go through the model's chat template
/// if it has one (see --no-chat). Tasks whose acceptance rate is not representative are
/// flagged: high_entropy, and texts that loop.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("task_run").multiple(true))]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    caches: CacheArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    sample: SampleArgs,
    #[command(flatten)]
    chat: ChatArgs,
    /// Measure speed and acceptance on ten kinds of task
    ///
    /// Code, explanations, summaries, questions, translations, mathematics and others
    #[arg(long, group = "task_run")]
    tasks: bool,
    /// Server to run the tasks on in place of a file, such as http://127.0.0.1:8080
    ///
    /// llama-server, vLLM, specrun serve, or another server with /v1/completions. Tasks run with drafts, and
    /// without them if the server has a switch for it
    #[arg(long, value_name = "URL", group = "task_run", conflicts_with_all = ["model", "target"])]
    url: Option<String>,
    /// API key of the server
    #[arg(
        long,
        value_name = "KEY",
        env = "LLAMA_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// File of prompts for --tasks and --url (JSON lines)
    ///
    /// Each line has id, prompt or messages, and optionally n_predict
    #[arg(short = 'f', long, value_name = "FILE.jsonl", requires = "task_run")]
    prompts: Option<PathBuf>,
    #[command(flatten)]
    length: LengthArgs,
    /// Compare two results of --tasks --json
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"])]
    compare: Vec<PathBuf>,
    /// Prompt length in tokens, processed before the timed passes
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    n_prompt: u16,
    /// Maximum number of tokens per pass, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=64))]
    width: u8,
    /// Number of timed rounds; medians are reported [default: 15, with --tasks 3]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: Option<u16>,
    #[command(flatten)]
    pages: PageArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Timed rounds over all pass widths.
const WIDTH_ROUNDS: usize = 15;
/// Timed rounds of prefill, which takes longer.
const PREFILL_ROUNDS: usize = 5;

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    if !args.compare.is_empty() {
        tasks::compare(&args.compare)?;
        return Ok(Verdict::Pass);
    }
    if let Some(url) = &args.url {
        tasks::run_on_server(args, url)?;
        return Ok(Verdict::Pass);
    }
    let model = args.target.path()?;
    if args.tasks {
        tasks::run(args, model)?;
        return Ok(Verdict::Pass);
    }
    let is_variable = env::var_os("LLAMA_ARG_N_PREDICT").is_some();
    if args.length.n_predict.is_some() && !is_variable {
        let hint = "pass --tasks to generate texts, or leave -n out";
        return Err(Hinted::new(
            "--n-predict: passes are timed without generating text",
            hint,
        )
        .into());
    }
    let drafts = args.spec.drafts()?;
    let inputs = [model]
        .into_iter()
        .chain(drafts.paths().map(PathBuf::as_path));
    let inputs: Vec<&Path> = inputs.collect();
    let pages = args.pages.widths(&inputs)?;
    let device = args.machine.device(model)?;
    let config = BenchConfig {
        n_prompt: args.n_prompt.into(),
        n_width: args.width.into(),
        n_rounds: args.repetitions.map_or(WIDTH_ROUNDS, usize::from),
        n_threads: device.n_threads(),
        types: args.caches.types(),
    };
    let mut report = on_device!(&device, backend => measure(args, model, &config, backend))?;
    report.provenance = args.origin(model, &drafts, None)?;
    pages.write(&report)?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

impl Args {
    /// Returns the origin of a report that is written as JSON or to a file. Hashing takes time, so text output
    /// does without it.
    fn origin(
        &self,
        model: &Path,
        drafts: &DraftFiles,
        prompts: Option<&[Prompt]>,
    ) -> anyhow::Result<Option<Provenance>> {
        if !self.json && !self.pages.is_given() {
            return Ok(None);
        }
        let drafts = drafts.models.iter().map(PathBuf::as_path);
        Ok(Some(provenance(
            [model].into_iter().chain(drafts),
            prompts,
        )?))
    }
}

fn measure<B: Backend>(
    args: &Args,
    model: &Path,
    config: &BenchConfig,
    backend: &Arc<B>,
) -> anyhow::Result<BenchReport> {
    let opened = model_files::ModelFile::new(model)?;
    let mut report = bench(backend, &opened, config)?;
    let (requested, drafts) = (args.spec.spec_types()?, args.spec.drafts()?);
    // A model without a tokenizer can be measured; only drafters need text.
    let has_drafters = match &requested {
        Some(types) => !types.is_empty(),
        None => !drafts.models.is_empty() || opened.hparams.n_mtp() > 0,
    };
    if has_drafters {
        let files = Files::open(model, &drafts)?;
        let spec_types = requested.unwrap_or_else(|| files.default_spec_types());
        let caches = args.spec.caches(&args.caches);
        let (n_prompt, n_rounds) = (config.n_prompt, config.n_rounds.min(PREFILL_ROUNDS));
        report.prefill = prefill(backend, &files, &spec_types, caches, n_prompt, n_rounds)?;
    }
    Ok(report)
}

/// Text output of the report.
struct Text<'a>(&'a BenchReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        writeln!(f, "{}, {}, {} threads", r.model, r.backend, r.n_threads)?;
        if let Some(cpu) = &r.cpu {
            writeln!(f, "CPU {cpu}")?;
        }
        writeln!(
            f,
            "prefill {:.1} tokens/s over {} tokens, decode {:.1} tokens/s at {:.1} GB/s of weights",
            r.prefill_tokens_per_s, r.n_prompt, r.decode_tokens_per_s, r.decode_gigabytes_per_s
        )?;
        if let (Some(rate), Some(share)) = (r.read_gigabytes_per_s, r.read_bandwidth_share) {
            let note = if share > 1.0 {
                "; above 1 because the weights fit in the CPU's caches"
            } else {
                ""
            };
            writeln!(
                f,
                "{share:.2} of the memory's read bandwidth ({rate:.1} GB/s with {} threads){note}",
                r.n_threads
            )?;
        }
        if let Some(rate) = r.read_gigabytes_per_s_of_one_thread {
            writeln!(f, "one thread reads {rate:.1} GB/s")?;
        }
        if let Some(text) = prefetching(r.prefetch_distance, r.prefetches_streams) {
            writeln!(f, "{text}")?;
        }
        write!(
            f,
            "tokens  pass ms  T(n)/T(1)  accepted tokens to break even"
        )?;
        for w in &r.widths {
            write!(
                f,
                "\n{:>6}  {:>7.2}  {:>9.2}  {:>29.2}",
                w.n_tokens, w.pass_ms, w.ratio, w.break_even_accepted
            )?;
        }
        for p in &r.prefill {
            write!(
                f,
                "\nprefill with {}: {:.1} tokens/s, {:.1} without; added time {:.3} of the target's, work \
                 {:.3} of the target's: {}",
                p.speculator,
                p.tokens_per_s,
                p.plain_tokens_per_s,
                p.added,
                p.work,
                if p.holds {
                    "pass"
                } else {
                    "FAIL, expected at most 0.05 more time than work"
                }
            )?;
        }
        Ok(())
    }
}
