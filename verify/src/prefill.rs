//! Cost that a speculator adds to a prefill: it processes the same batches, and its share of the
//! time should not exceed its share of the work.

use std::sync::Arc;
use std::time::Instant;

use kernels::backend::Backend;
use runner::loaded_models::LoadedModels;
use runner::model_files::Files;
use runner::run_config::{RunCaches, RunConfig};
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{DecodeConfig, DraftConfig, Driver, Policy, Request, SpecType};
use runner::statistics::median;
use schemas::progress::{Task, Unit};
use schemas::report::PrefillCost;

use crate::error::Error;

/// Tolerated excess over a speculator's share of the work.
const SLACK: f64 = 0.05;

/// Times prefills of `n_prompt` tokens without speculators and with each of them, alternately.
///
/// # Errors
/// A speculator lacks its draft file, or cannot run.
pub fn prefill<B: Backend>(
    backend: &Arc<B>,
    files: &Files,
    spec_types: &[SpecType],
    caches: RunCaches,
    n_prompt: usize,
    n_rounds: usize,
) -> Result<Vec<PrefillCost>, Error> {
    let run = |spec_types: &[SpecType]| RunConfig {
        spec_types: spec_types.to_vec(),
        policy: Policy::First,
        drafting: DraftConfig::of_length(1),
        n_seq: 1,
        n_ctx: n_prompt + N_PREDICT,
        caches,
    };
    let runs: Vec<RunConfig> = spec_types.iter().map(|&kind| run(&[kind])).collect();
    let loaded = LoadedModels::new(files, backend, &runs)?;
    let n_vocab = files.model.hparams.n_vocab;
    let mut costs = Vec::new();
    for (&kind, with_drafts) in spec_types.iter().zip(&runs) {
        let mut plain = loaded.driver(&run(&[]))?;
        let mut drafted = loaded.driver(with_drafts)?;
        let mut times = [Vec::new(), Vec::new()];
        let mut added = Vec::new();
        let label = format!("time prefill with {}", kind.name());
        let task = Task::start(&label, n_rounds as u64, Unit::Steps("rounds"));
        for round in 0..n_rounds as u64 {
            // The first token differs each time, otherwise the cached prefix would be reused.
            let token = |i| ((i * 2_654_435_761 + round) % n_vocab) as u32;
            let tokens: Vec<u32> = (0..n_prompt as u64).map(token).collect();
            let (seconds, _) = read(&mut plain, &tokens)?;
            let (with, drafter) = read(&mut drafted, &tokens)?;
            times[0].push(seconds);
            times[1].push(with + drafter.1);
            added.push((drafter.0 + drafter.1) / (with - drafter.0));
            task.advance(1);
        }
        let [without, with] = times.map(|times| median(times).expect("there are rounds"));
        let work = loaded.prompt_work(kind, n_prompt as u64);
        let added = median(added).expect("there are rounds");
        costs.push(PrefillCost {
            speculator: kind.name().to_owned(),
            tokens_per_s: n_prompt as f64 / with,
            plain_tokens_per_s: n_prompt as f64 / without,
            added,
            work,
            limit: work + SLACK,
            holds: added <= work + SLACK,
        });
    }
    Ok(costs)
}

/// Tokens to generate: one after the prompt, one drafted, one after that.
const N_PREDICT: usize = 3;

/// Returns the seconds of the prefill, and the drafters' seconds: in the prefill, and for the first
/// draft, which evaluates the pending tokens of the prompt.
fn read<B: Backend>(driver: &mut Driver<B>, tokens: &[u32]) -> Result<(f64, (f64, f64)), Error> {
    let request = Request::new("prefill", tokens.to_vec(), N_PREDICT);
    let mut failed = None;
    let mut config = DecodeConfig {
        on_failure: Some(&mut |failure| failed = Some(failure.error)),
        ..DecodeConfig::new(Sampler::new(SampleConfig::GREEDY)?, &|_| false)
    };
    let before = driver.speculator_seconds();
    let started = Instant::now();
    driver.join(0, 0, &request, &mut config)?;
    let seconds = started.elapsed().as_secs_f64();
    let read = driver.speculator_seconds();
    driver.round(&mut config)?;
    driver.leave(0);
    let drafted = driver.speculator_seconds();
    if let Some(error) = failed {
        return Err(error.into());
    }
    Ok((
        seconds,
        (
            read.process - before.process,
            drafted.drafting - read.drafting,
        ),
    ))
}
