//! Speed and acceptance by the sort of task, one request after another.

use std::path::PathBuf;
use std::time::Instant;

use kernels::backend::Backend;
use schemas::report::{SCHEMA_VERSION, TaskReport, TasksAggregate, TasksReport};

use crate::error::Error;
use crate::load::{DraftFiles, Files, RunConfig};
use crate::loaded::Loaded;
use crate::metrics::Tally;
use crate::prompts::Prompt;
use crate::sample::Sampler;
use crate::speculate::{DecodeConfig, Policy, Request, SpecType, Verification};
use crate::tokenizer::EncodeConfig;
use crate::verify::{Machine, Way};

/// What to run.
pub struct TasksConfig {
    /// The target.
    pub model: PathBuf,
    /// What drafts beside the target.
    pub drafts: DraftFiles,
    /// Speculators, in the order in which they are asked; empty for what the files can draft with.
    pub spec_types: Vec<SpecType>,
    /// One prompt a task.
    pub prompts: Vec<Prompt>,
    /// Tokens to write where a prompt does not say.
    pub n_predict: usize,
    /// How long drafts are, and how tokens are chosen.
    pub way: Way,
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
    let encode = EncodeConfig {
        add_special: true,
        parse_special: true,
    };
    let request = |prompt: &Prompt| Request {
        id: prompt.id.clone(),
        tokens: files.tokenizer.encode(&prompt.prompt, encode),
        n_predict: prompt.n_predict.map_or(config.n_predict, |n| n.get()),
    };
    let requests: Vec<Request> = config.prompts.iter().map(request).collect();
    let loaded = Loaded::new(&files, &machine.backend, &spec_types)?;
    let n_ctx = files.n_ctx(&requests);
    let run = |spec_types: &[SpecType]| -> Result<(Vec<Tally>, f64), Error> {
        let sizes = RunConfig {
            spec_types: spec_types.to_vec(),
            policy: Policy::First,
            chain: config.way.chain,
            n_seq: 1,
            n_ctx,
            caches: config.way.caches,
        };
        let mut driver = loaded.driver(&sizes)?;
        let mut decode = DecodeConfig {
            sampler: Sampler::new(config.way.sample)?,
            verification: Verification::Match,
            is_end: &|token| files.tokenizer.is_end_of_generation(token),
            on_token: &mut |_| {},
            on_failure: &mut |_| {},
        };
        let started = Instant::now();
        let (done, _) = driver.decode(&requests, &mut decode)?;
        let wall = started.elapsed().as_secs_f64();
        Ok((done.into_iter().map(|done| done.tally).collect(), wall))
    };
    let (plain, plain_wall) = run(&[])?;
    let (drafted, wall) = run(&spec_types)?;
    let rows = requests.iter().zip(&plain).zip(&drafted);
    let tasks: Vec<TaskReport> = rows
        .map(|((request, plain), drafted)| task(request, plain, drafted))
        .collect();
    let sum = |count: fn(&TaskReport) -> u64| tasks.iter().map(count).sum::<u64>();
    let (total_draft, total_accepted) = (sum(|t| t.draft_n), sum(|t| t.draft_n_accepted));
    Ok(TasksReport {
        schema_version: SCHEMA_VERSION,
        model: config.model.display().to_string(),
        speculators: spec_types
            .iter()
            .map(|kind| kind.name().to_owned())
            .collect(),
        n_draft_max: config.way.chain.n_max as u32,
        backend: machine.backend.name(),
        n_threads: machine.n_threads as u32,
        aggregate: TasksAggregate {
            n_requests: tasks.len() as u64,
            total_predicted: sum(|t| t.predicted_n),
            total_draft,
            total_draft_accepted: total_accepted,
            aggregate_accept_rate: ratio(total_accepted, total_draft).map(|x| rounded(x, 4)),
            wall_s_total: rounded(wall, 2),
        },
        plain_wall_s_total: rounded(plain_wall, 2),
        tasks,
    })
}

fn task(request: &Request, plain: &Tally, drafted: &Tally) -> TaskReport {
    let (plain, counters) = (plain.report(), drafted.report());
    let speedup = match (counters.tokens_per_s, plain.tokens_per_s) {
        (Some(with), Some(without)) if without > 0.0 => Some(with / without),
        _ => None,
    };
    TaskReport {
        task: request.id.clone(),
        prompt_n: request.tokens.len() as u64,
        predicted_n: counters.n_tokens,
        draft_n: counters.n_drafted,
        draft_n_accepted: counters.n_accepted,
        accept_rate: counters.acceptance,
        predicted_per_second: counters.tokens_per_s,
        plain_per_second: plain.tokens_per_s,
        speedup,
        by_draft_position: counters.by_draft_position,
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn rounded(x: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (x * unit).round() / unit
}
