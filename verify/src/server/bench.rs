//! Speed and acceptance of a server on kinds of task.

use std::time::Instant;

use schemas::report::{SCHEMA_VERSION, TaskReport, TasksReport};
use serde_json::json;

use super::client::{Client, Reply, Settings};
use super::counters::Counters;
use crate::error::Error;
use crate::loops::longest_loop;
use crate::prompts::{self, Prompt};
use crate::report::ratio;
use crate::spread::{compare_speeds, spread};
use crate::tasks::{aggregate, flags, rounded};

/// Configuration of a run over tasks on a server.
#[derive(Clone, Debug)]
pub struct ServerBenchConfig {
    /// Address of the server.
    pub url: String,
    /// API key.
    pub key: Option<String>,
    /// One prompt per task, sent as a user message if the model has a chat template.
    pub prompts: Vec<Prompt>,
    /// Tokens to generate if a prompt does not specify a number.
    pub n_predict: usize,
    /// Number of runs of all tasks.
    pub n_runs: usize,
}

/// A timed reply.
struct Timed {
    reply: Reply,
    seconds: f64,
}

impl Timed {
    /// Returns the tokens per second: the server's own number, else from the time of the request.
    fn speed(&self) -> Option<f64> {
        let n = self.reply.n_predicted.map(|n| n as f64);
        let own = self.reply.per_second.filter(|&x| x > 0.0);
        own.or_else(|| n.filter(|_| self.seconds > 0.0).map(|n| n / self.seconds))
    }
}

/// Runs every task on a server, one after another: with drafts, and without them if the server has a switch
/// for it.
///
/// # Errors
/// The server cannot be reached, or refuses a request.
pub fn bench_server(config: &ServerBenchConfig) -> Result<TasksReport, Error> {
    prompts::check_text(&config.prompts)?;
    let client = Client::new(&config.url, config.key.clone())?;
    let n_predict = |prompt: &Prompt| prompt.n_predict.map_or(config.n_predict, usize::from);
    let settings = |prompt: &Prompt, is_plain| Settings {
        n_predict: n_predict(prompt),
        temperature: 0.0,
        cache_prompt: false,
        is_plain,
        stream: false,
    };
    // The first task is the warm-up; without a chat template, prompts are continued.
    let has_template = match config.prompts.first() {
        Some(first) => client.chat(&first.prompt, settings(first, false)).is_ok(),
        None => false,
    };
    let run = |prompt: &Prompt, is_plain: bool| -> Result<Timed, Error> {
        let before = Counters::read(&client);
        let started = Instant::now();
        let settings = settings(prompt, is_plain);
        let mut reply = match has_template {
            true => client.chat(&prompt.prompt, settings)?,
            false => client.complete(&json!(prompt.prompt), settings)?,
        };
        let seconds = started.elapsed().as_secs_f64();
        if let (false, Some(before)) = (reply.counts_drafts, before)
            && let Some(after) = Counters::read(&client)
        {
            let grown = after.since(before);
            (reply.n_drafted, reply.n_accepted) = (grown.n_drafted, grown.n_accepted);
        }
        Ok(Timed { reply, seconds })
    };
    let mut runs: Vec<Vec<[Timed; 2]>> = Vec::new();
    for _ in 0..config.n_runs.max(1) {
        let tasks = config.prompts.iter();
        let tasks = tasks.map(|prompt| Ok([run(prompt, true)?, run(prompt, false)?]));
        runs.push(tasks.collect::<Result<_, Error>>()?);
    }
    let is_honoured = runs
        .iter()
        .flatten()
        .all(|[plain, _]| plain.reply.n_drafted == 0);
    let reports = config.prompts.iter().enumerate();
    let tasks: Vec<TaskReport> = reports
        .map(|(i, prompt)| {
            let runs: Vec<&[Timed; 2]> = runs.iter().map(|run| &run[i]).collect();
            task(prompt, &runs, is_honoured)
        })
        .collect();
    let unflagged: Vec<&TaskReport> = tasks.iter().filter(|t| t.flags.is_empty()).collect();
    let wall = |side: usize| {
        let walls = runs
            .iter()
            .map(|run| run.iter().map(|task| task[side].seconds).sum());
        spread(walls).map_or(0.0, |wall| rounded(wall.median, 2))
    };
    Ok(TasksReport {
        schema_version: SCHEMA_VERSION,
        provenance: None,
        model: match &client.model {
            Some(model) => format!("{model} at {}", config.url),
            None => config.url.clone(),
        },
        speculators: client.spec_types.clone(),
        policy: None,
        n_draft_max: 0,
        backend: client.version.clone().unwrap_or_default(),
        n_threads: 0,
        n_runs: Some(runs.len() as u32),
        aggregate: aggregate(&tasks.iter().collect::<Vec<_>>(), wall(1)),
        aggregate_unflagged: (unflagged.len() < tasks.len()).then(|| {
            let ms = unflagged.iter().map(|t| t.prompt_ms + t.predicted_ms);
            aggregate(&unflagged, ms.sum::<f64>() / 1e3)
        }),
        plain_wall_s_total: if is_honoured { wall(0) } else { 0.0 },
        break_even: None,
        tasks,
    })
}

/// Reports a task: counters of the first run, speeds of all runs.
fn task(prompt: &Prompt, runs: &[&[Timed; 2]], is_honoured: bool) -> TaskReport {
    let reply = &runs[0][1].reply;
    let longest_loop = longest_loop(&reply.tokens);
    let pairs = runs.iter().map(|[plain, drafted]| {
        let plain = plain.speed().filter(|_| is_honoured);
        (plain, drafted.speed())
    });
    let speed = compare_speeds(&pairs.collect::<Vec<_>>(), Vec::new());
    let own = spread(runs.iter().filter_map(|[_, drafted]| drafted.speed()));
    let is_drafted = reply.n_drafted > 0;
    TaskReport {
        task: prompt.id.clone(),
        flags: flags(prompt, longest_loop.as_ref()),
        longest_loop,
        cache_n: 0,
        prompt_n: reply.n_prompt,
        prompt_ms: reply.prompt_ms,
        prompt_per_second: match reply.prompt_ms > 0.0 {
            true => reply.n_prompt as f64 * 1e3 / reply.prompt_ms,
            false => 0.0,
        },
        predicted_n: reply.n_predicted.unwrap_or(0),
        predicted_ms: reply.predicted_ms,
        draft_n: reply.n_drafted,
        draft_n_accepted: reply.n_accepted,
        accept_rate: ratio(reply.n_accepted, reply.n_drafted),
        predicted_per_second: own.map(|own| own.median),
        plain_per_second: speed.as_ref().map(|speed| speed.plain_tokens_per_s.median),
        speedup: speed
            .as_ref()
            .filter(|_| is_drafted)
            .map(|speed| speed.ratio.median),
        speed: speed.filter(|_| is_drafted),
        by_draft_position: Vec::new(),
    }
}
