//! Speed and acceptance rate by kind of task, one request after another, alternating between
//! decoding with drafts and without.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernels::backend::Backend;
use runner::batch::{Batch, Outputs};
use runner::cache::CacheConfig;
use runner::context::{Context, ContextConfig, N_BATCH};
use runner::loaded_models::LoadedModels;
use runner::model_files::{DraftFiles, Files};
use runner::run_config::RunConfig;
use runner::sample::Sampler;
use runner::speculate::{Completion, DecodeConfig, Driver, Request, SpecType};
use runner::tally::Tally;
use schemas::progress::{Task, Unit};
use schemas::report::{
    BreakEven, LoopReport, SCHEMA_VERSION, TaskFlag, TaskReport, TasksAggregate, TasksReport,
    WidthCost,
};

use crate::bench::WidthTimes;
use crate::error::Error;
use crate::loops::{fills_most, longest_loop};
use crate::prompts::Prompt;
use crate::report::{self, ratio};
use crate::spread::{compare_speeds, spread};
use crate::{DecodeOptions, Machine};

/// Configuration of a run over tasks.
pub struct TasksConfig {
    /// The target.
    pub model: PathBuf,
    /// The files of the drafters.
    pub drafts: DraftFiles,
    /// Speculators, in the order in which they are asked; if empty, those that the files allow.
    pub spec_types: Vec<SpecType>,
    /// One prompt per task.
    pub prompts: Vec<Prompt>,
    /// Tokens to generate if a prompt does not specify a number.
    pub n_predict: usize,
    /// The decoding configuration.
    pub options: DecodeOptions,
    /// Number of timed runs of all tasks with drafts, and as many without.
    pub n_runs: usize,
}

/// Decodes every task without drafts and with them.
///
/// # Errors
/// A file cannot be used, or a prompt cannot be decoded.
pub fn tasks<B: Backend>(machine: &Machine<B>, config: &TasksConfig) -> Result<TasksReport, Error> {
    let files = Files::open(&config.model, &config.drafts)?;
    let spec_types = match config.spec_types.as_slice() {
        [] => files.default_spec_types(),
        types => types.to_vec(),
    };
    let request = |prompt: &Prompt| prompt.request(&files.tokenizer, config.n_predict);
    let requests: Vec<Request> = config.prompts.iter().map(request).collect();
    let n_ctx = files.n_ctx(&requests, config.options.n_ctx_max);
    let [plain, drafted] = [&[], &spec_types[..]].map(|spec_types| RunConfig {
        spec_types: spec_types.to_vec(),
        policy: config.options.policy,
        drafting: config.options.drafting,
        n_seq: 1,
        n_ctx,
        caches: config.options.caches,
    });
    let loaded = LoadedModels::new(&files, &machine.backend, std::slice::from_ref(&drafted))?;
    let mut timer = PassTimer::new(&loaded, &requests, config, &spec_types)?;
    let is_end = |token| files.tokenizer.is_end_of_generation(token);
    let mut decode = DecodeConfig::new(Sampler::new(config.options.sample)?, &is_end);
    // The first task is the warm-up: weights are read from disk and repacked on first use.
    for request in requests.iter().take(1) {
        Side::new(&loaded, &plain)?.run(request, &mut decode)?;
        Side::new(&loaded, &drafted)?.run(request, &mut decode)?;
    }
    let mut runs: Vec<[RunResult; 2]> = Vec::new();
    let n_texts = 2 * config.n_runs.max(1) * requests.len();
    let progress = Task::start("run tasks", n_texts as u64, Unit::Steps("texts"));
    for _ in 0..config.n_runs.max(1) {
        // Drafters keep state between texts, so each run starts with new ones.
        let mut sides = [Side::new(&loaded, &plain)?, Side::new(&loaded, &drafted)?];
        for request in &requests {
            for side in &mut sides {
                side.run(request, &mut decode)?;
                progress.advance(1);
            }
            timer.round(sides[1].result.total.by_position.len() + 1);
        }
        runs.push(sides.map(|side| side.result));
    }
    files.check_unchanged()?;
    let rows = config.prompts.iter().zip(&requests).enumerate();
    let tasks: Vec<TaskReport> = rows
        .map(|(i, (prompt, request))| task(prompt, request, i, &runs))
        .collect();
    let unflagged: Vec<&TaskReport> = tasks.iter().filter(|t| t.flags.is_empty()).collect();
    let wall = |side: usize| spread(runs.iter().map(|run| run[side].wall));
    let wall = |side| wall(side).map_or(0.0, |wall| rounded(wall.median, 2));
    Ok(TasksReport {
        schema_version: SCHEMA_VERSION,
        provenance: None,
        model: config.model.display().to_string(),
        speculators: spec_types
            .iter()
            .map(|kind| kind.name().to_owned())
            .collect(),
        policy: Some(config.options.policy.name().to_owned()),
        n_draft_max: config.options.drafting.limits.n_max as u32,
        backend: machine.backend.name(),
        n_threads: machine.n_threads as u32,
        n_runs: Some(runs.len() as u32),
        aggregate: aggregate(&tasks.iter().collect::<Vec<_>>(), wall(1)),
        aggregate_unflagged: (unflagged.len() < tasks.len()).then(|| {
            let ms = unflagged.iter().map(|t| t.prompt_ms + t.predicted_ms);
            aggregate(&unflagged, ms.sum::<f64>() / 1e3)
        }),
        plain_wall_s_total: wall(0),
        break_even: break_even(typical(&mut runs), &timer.times.costs()),
        tasks,
    })
}

/// One of the two configurations compared.
struct Side<B: Backend> {
    driver: Driver<B>,
    result: RunResult,
}

/// Results of decoding all tasks once.
#[derive(Default)]
struct RunResult {
    /// Completions by request, and their sum.
    completions: Vec<Completion>,
    total: Tally,
    /// Wall time in seconds, prompts included.
    wall: f64,
}

impl<B: Backend> Side<B> {
    fn new(loaded: &LoadedModels<'_, B>, sizes: &RunConfig) -> Result<Side<B>, Error> {
        Ok(Side {
            driver: loaded.driver(sizes)?,
            result: RunResult::default(),
        })
    }

    fn run(&mut self, request: &Request, decode: &mut DecodeConfig<'_>) -> Result<(), Error> {
        let started = Instant::now();
        let (done, total) = self.driver.decode(std::slice::from_ref(request), decode)?;
        self.result.wall += started.elapsed().as_secs_f64();
        self.result.completions.extend(done);
        self.result.total.add_later(&total);
        Ok(())
    }
}

/// Returns the run with the median speedup.
fn typical(runs: &mut [[RunResult; 2]]) -> &[RunResult; 2] {
    let ratio = |[plain, drafted]: &[RunResult; 2]| {
        let speed = |result: &RunResult| result.total.tokens_per_s().unwrap_or(0.0);
        speed(drafted) / speed(plain)
    };
    runs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    &runs[runs.len() / 2]
}

/// Measures the cost of the target's passes during the runs, after the longest prompt.
struct PassTimer<B: Backend> {
    context: Context<B>,
    tokens: Vec<u32>,
    times: WidthTimes,
}

impl<B: Backend> PassTimer<B> {
    fn new(
        loaded: &LoadedModels<'_, B>,
        requests: &[Request],
        config: &TasksConfig,
        spec_types: &[SpecType],
    ) -> Result<PassTimer<B>, Error> {
        let prompts = requests.iter().map(|request| &request.tokens[..]);
        let prompt = prompts.max_by_key(|tokens| tokens.len()).unwrap_or(&[]);
        let prompt = &prompt[..prompt.len().min(N_BATCH)];
        let longest = spec_types
            .iter()
            .map(|&kind| (kind.spec().n_max)(&config.options.drafting));
        let n_width = longest.max().unwrap_or(0) + 1;
        let mut context = loaded.target(ContextConfig {
            cache: CacheConfig {
                n_seq: 1,
                n_ctx: prompt.len() + n_width,
                n_rollback: n_width,
                types: config.options.caches.target,
            },
            n_batch: N_BATCH,
            n_outputs: n_width,
        })?;
        let mut batch = Batch::default();
        batch.push(0, 0, prompt, Outputs::None);
        if !batch.is_empty() {
            context.forward(&batch, None);
        }
        Ok(PassTimer {
            context,
            tokens: prompt.iter().copied().cycle().take(n_width).collect(),
            times: WidthTimes::default(),
        })
    }

    /// Runs one pass of each width.
    fn round(&mut self, n_width: usize) {
        let n_width = n_width.min(self.tokens.len());
        self.times.round(&mut self.context, &self.tokens[..n_width]);
    }
}

/// Speedup above which, if estimated from costs, drafting is expected to pay.
const CLEARLY: f64 = 1.05;

/// Compares the number of accepted tokens needed to break even with the number reached.
fn break_even([plain, drafted]: &[RunResult; 2], widths: &[WidthCost]) -> Option<BreakEven> {
    let (plain, drafted) = (&plain.total, &drafted.total);
    let (plain_speed, speed) = (plain.tokens_per_s()?, drafted.tokens_per_s()?);
    if drafted.n_passes == 0 || widths.is_empty() {
        return None;
    }
    let one = widths[0].pass_ms / 1e3;
    // The number of drafts that reached each position gives the number of passes of each width.
    let reached = drafted.by_position.iter().map(|counts| counts.n_drafted);
    let reached: Vec<u64> = [drafted.n_passes].into_iter().chain(reached).collect();
    let passes = (0..reached.len()).map(|i| reached[i] - reached.get(i + 1).copied().unwrap_or(0));
    let seconds = passes
        .zip(widths)
        .map(|(n, cost)| n as f64 * cost.pass_ms / 1e3);
    let drafters = drafted
        .speculators
        .iter()
        .map(|s| s.process + s.drafting + s.accept);
    let drafters = drafters.sum::<Duration>().as_secs_f64();
    let per_pass = (seconds.sum::<f64>() + drafters) / drafted.n_passes as f64;
    let accepted_per_pass = drafted.n_accepted() as f64 / drafted.n_passes as f64;
    let needed_per_pass = (per_pass / one - 1.0).max(0.0);
    let expected_speedup = (1.0 + accepted_per_pass) * one / per_pass;
    let speedup = speed / plain_speed;
    Some(BreakEven {
        accepted_per_pass,
        needed_per_pass,
        expected_speedup,
        speedup,
        holds: expected_speedup < CLEARLY || speedup > 1.0,
    })
}

pub(crate) fn aggregate(tasks: &[&TaskReport], wall: f64) -> TasksAggregate {
    // Servers report any number.
    let sum = |count: fn(&TaskReport) -> u64| {
        let counts = tasks.iter().map(|task| count(task));
        counts.fold(0, u64::saturating_add)
    };
    let (drafted, accepted) = (sum(|t| t.draft_n), sum(|t| t.draft_n_accepted));
    TasksAggregate {
        n_requests: tasks.len() as u64,
        total_predicted: sum(|t| t.predicted_n),
        total_draft: drafted,
        total_draft_accepted: accepted,
        aggregate_accept_rate: ratio(accepted, drafted).map(|x| rounded(x, 4)),
        wall_s_total: rounded(wall, 2),
    }
}

/// Kind of tasks whose text is not predictable.
const HIGH_ENTROPY: &str = "high_entropy";

pub(crate) fn flags(prompt: &Prompt, longest_loop: Option<&LoopReport>) -> Vec<TaskFlag> {
    let is_high_entropy = prompt.id == HIGH_ENTROPY || prompt.kind.as_deref() == Some(HIGH_ENTROPY);
    let is_looping = longest_loop.is_some_and(fills_most);
    let high_entropy = is_high_entropy.then_some(TaskFlag::HighEntropy);
    high_entropy
        .into_iter()
        .chain(is_looping.then_some(TaskFlag::Looping))
        .collect()
}

/// Reports the task with index `i`: text and counters of the first run, speeds of all runs.
fn task(prompt: &Prompt, request: &Request, i: usize, runs: &[[RunResult; 2]]) -> TaskReport {
    let drafted = &runs[0][1].completions[i];
    let longest_loop = longest_loop(&drafted.tokens);
    let timings = drafted.tally.timings(request.tokens.len());
    let counters = report::counters(&drafted.tally);
    let speed = |result: &RunResult| result.completions[i].tally.tokens_per_s();
    let pairs = runs
        .iter()
        .map(|[plain, drafted]| (speed(plain), speed(drafted)));
    let speed = compare_speeds(&pairs.collect::<Vec<_>>(), Vec::new());
    let is_drafted = counters.n_drafted > 0;
    TaskReport {
        task: request.id.clone(),
        flags: flags(prompt, longest_loop.as_ref()),
        longest_loop,
        cache_n: timings.cache_n,
        prompt_n: timings.prompt_n,
        prompt_ms: timings.prompt_ms,
        prompt_per_second: timings.prompt_per_second,
        predicted_n: counters.n_tokens,
        predicted_ms: timings.predicted_ms,
        draft_n: counters.n_drafted,
        draft_n_accepted: counters.n_accepted,
        accept_rate: counters.acceptance,
        predicted_per_second: speed.as_ref().map(|speed| speed.tokens_per_s.median),
        plain_per_second: speed.as_ref().map(|speed| speed.plain_tokens_per_s.median),
        speedup: match is_drafted {
            true => speed.as_ref().map(|speed| speed.ratio.median),
            false => Some(1.0),
        },
        speed: speed.filter(|_| is_drafted),
        by_draft_position: counters.by_draft_position,
    }
}

pub(crate) fn rounded(x: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (x * unit).round() / unit
}
