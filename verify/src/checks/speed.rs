//! Speed with and without drafts.
//!
//! The identity check is the warm-up. Then plain decoding and every setting run alternately, with
//! some of the prompts each, five times or more, so that a temporary slowdown of the machine
//! affects all of them.

use std::time::{Duration, Instant};

use kernels::backend::Backend;
use runner::speculate::{Completion, Proof, Request};
use schemas::report::{KindSpeed, SpeedComparison, Spread};

use crate::error::Error;
use crate::prompts::Prompt;
use crate::spread::{compare_speeds, spread};

use super::VerifyConfig;
use super::prompt_decoder::{Decoded, PromptDecoder};
use super::setting::Setting;

/// Minimum number of timed runs of each setting: the interval of five ratios is half as wide as that of three.
const MIN_RUNS: usize = 5;
/// Maximum number of timed runs of each setting.
const MAX_RUNS: usize = 9;
/// Time limit of all timed runs; if the identity check took longer, its time is the limit.
const BUDGET: Duration = Duration::from_secs(20);

/// Speeds of all settings.
pub(super) struct Speeds {
    /// Tokens per second without drafts; `None` if a run took no time.
    pub(super) plain: Option<Spread>,
    /// Comparison for each setting; `None` if there was nothing to compare.
    pub(super) drafted: Vec<Option<SpeedComparison>>,
}

/// Speeds of one setting, by run.
#[derive(Default)]
struct Runs {
    tokens_per_s: Vec<Option<f64>>,
    /// Speeds by kind of prompt, in order of appearance.
    by_kind: Vec<(Option<String>, Vec<f64>)>,
}

/// Measures plain decoding and all settings that drafted anything. A setting that fails here
/// becomes a failed one.
///
/// # Errors
/// See [`PromptDecoder::decode`].
pub(super) fn measure_speeds<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    plain: &Decoded,
    settings: &[Setting],
    proven: &mut [Result<Decoded, String>],
) -> Result<Speeds, Error> {
    let is_drafting = |proven: &Result<Decoded, String>| {
        proven
            .as_ref()
            .is_ok_and(|drafted| drafted.total.n_drafted() > 0)
    };
    let mut timed: Vec<Option<Runs>> = proven
        .iter()
        .map(|proven| is_drafting(proven).then(Runs::default))
        .collect();
    let walls = proven.iter().filter(|proven| is_drafting(proven)).flatten();
    let proof: Duration = plain.wall + walls.map(|drafted| drafted.wall).sum::<Duration>();
    let budget = BUDGET.max(proof);
    let n = n_prompts(
        bench.requests.len(),
        config.options.n_parallel,
        proof,
        budget,
    );
    let chosen: Vec<usize> = (0..n).map(|i| i * bench.requests.len() / n).collect();
    let requests: Vec<Request> = chosen.iter().map(|&i| bench.requests[i].clone()).collect();
    let prompts: Vec<&Prompt> = chosen.iter().map(|&i| &config.prompts[i]).collect();
    let bench = bench.of(&requests);
    let mut plain_runs = Runs::default();
    let started = Instant::now();
    for round in 1..=MAX_RUNS {
        match bench.decode(&Setting::PLAIN, config.options, Proof::None)? {
            Ok(decoded) => plain_runs.add(&decoded, &prompts),
            Err(_) => plain_runs.tokens_per_s.push(None),
        }
        for (i, setting) in settings.iter().enumerate() {
            let Some(runs) = &mut timed[i] else { continue };
            match bench.decode(setting, config.options, Proof::None)? {
                Ok(decoded) => runs.add(&decoded, &prompts),
                Err(why) => (timed[i], proven[i]) = (None, Err(why)),
            }
        }
        let next = started.elapsed() * (round as u32 + 1) / round as u32;
        if round >= MIN_RUNS && next > budget {
            break;
        }
    }
    let is_alone = config.options.n_parallel == 1;
    let compare = |runs: Runs| {
        let pairs = plain_runs.tokens_per_s.iter().copied();
        let pairs: Vec<_> = pairs.zip(runs.tokens_per_s).collect();
        let by_kind = match is_alone {
            true => kind_speeds(runs.by_kind),
            false => Vec::new(),
        };
        compare_speeds(&pairs, by_kind)
    };
    let drafted = timed.into_iter().map(|runs| compare(runs?)).collect();
    let speeds: Option<Vec<f64>> = plain_runs.tokens_per_s.iter().copied().collect();
    Ok(Speeds {
        plain: speeds.and_then(spread),
        drafted,
    })
}

/// Returns the number of prompts of a timed run: all, or as many as let the minimum number of runs
/// end within the budget, but enough to keep all sequences busy.
fn n_prompts(n_all: usize, n_parallel: usize, proof: Duration, budget: Duration) -> usize {
    let share = budget.as_secs_f64() / MIN_RUNS as f64 / proof.as_secs_f64().max(1e-9);
    let n = (n_all as f64 * share).floor().min(n_all as f64) as usize;
    n.max(n_parallel.min(n_all)).max(1)
}

impl Runs {
    fn add(&mut self, decoded: &Decoded, prompts: &[&Prompt]) {
        self.tokens_per_s.push(decoded.total.tokens_per_s());
        let mut sums: Vec<(Option<String>, u64, f64)> = Vec::new();
        for (prompt, Completion { tally, .. }) in prompts.iter().zip(&decoded.completions) {
            let (n, seconds) = (tally.n_tokens, tally.elapsed.as_secs_f64());
            match sums.iter_mut().find(|(kind, ..)| *kind == prompt.kind) {
                Some(sum) => (sum.1, sum.2) = (sum.1 + n, sum.2 + seconds),
                None => sums.push((prompt.kind.clone(), n, seconds)),
            }
        }
        for (kind, n, seconds) in sums.into_iter().filter(|&(.., seconds)| seconds > 0.0) {
            let speed = n as f64 / seconds;
            match self.by_kind.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, speeds)) => speeds.push(speed),
                None => self.by_kind.push((kind, vec![speed])),
            }
        }
    }
}

fn kind_speeds(by_kind: Vec<(Option<String>, Vec<f64>)>) -> Vec<KindSpeed> {
    let speed = |(kind, speeds): (Option<String>, Vec<f64>)| {
        let tokens_per_s = spread(speeds)?.median;
        Some(KindSpeed { kind, tokens_per_s })
    };
    by_kind.into_iter().filter_map(speed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed_runs_end_within_the_budget() {
        let prompts = |n_parallel, proof, budget| {
            let seconds = Duration::from_secs;
            n_prompts(10, n_parallel, seconds(proof), seconds(budget))
        };
        assert_eq!(prompts(1, 1, 20), 10);
        assert_eq!(prompts(1, 300, 300), 2);
        assert_eq!(prompts(4, 300, 300), 4);
        assert_eq!(prompts(16, 300, 300), 10);
        assert_eq!(prompts(1, 3000, 20), 1);
    }
}
