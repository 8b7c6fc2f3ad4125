//! Cost of a pass by its width, which decides whether drafting pays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::backend::{Backend, Prefetching, Readers};
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig, N_BATCH};
use runner::loaded_models::load_context;
use runner::model_files::ModelFile;
use runner::statistics::median;
use schemas::progress::{Task, Unit};
use schemas::report::{BenchReport, SCHEMA_VERSION, WidthCost};

use crate::cpu_model::cpu_model;
use crate::error::Error;

/// Seconds after which prefill is not timed again.
const LONG_PREFILL: f64 = 20.0;

/// Time to fill the CPU's caches before passes are timed.
const WARM_UP: Duration = Duration::from_millis(200);

/// Sizes of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct BenchConfig {
    /// Number of tokens in the cache before the measured ones.
    pub n_prompt: usize,
    /// Maximum width of a pass, in tokens.
    pub n_width: usize,
    /// Number of rounds; each round has one pass of every width.
    pub n_rounds: usize,
    /// Number of threads of the backend, for the report.
    pub n_threads: usize,
    /// Element types of the caches.
    pub types: CacheTypes,
}

/// Times passes of all widths alternately, so that a temporary slowdown of the machine affects all
/// of them.
///
/// # Errors
/// The model cannot be used.
pub fn bench<B: Backend>(
    backend: &Arc<B>,
    file: &ModelFile,
    config: &BenchConfig,
) -> Result<BenchReport, Error> {
    let n_vocab = file.hparams.n_vocab;
    let BenchConfig {
        n_prompt,
        n_width,
        n_rounds,
        n_threads,
        types,
    } = *config;
    let sizes = ContextConfig {
        cache: CacheConfig {
            n_seq: 1,
            n_ctx: n_prompt + n_width,
            n_rollback: n_width,
            types,
        },
        n_batch: N_BATCH.max(n_width),
        n_outputs: n_width,
    };
    let mut context = load_context(file, backend, sizes)?;
    let weight_bytes = context.model().pass_bytes as u64;
    // The cost does not depend on the tokens; these are spread over the vocabulary.
    let tokens: Vec<u32> = (0..(n_prompt + n_width) as u64)
        .map(|i| (i * 2_654_435_761 % n_vocab) as u32)
        .collect();
    let (prompt, rest) = tokens.split_at(n_prompt);
    let mut prefill: Vec<f64> = Vec::new();
    // The first prefill also reads the weights from disk, which does not matter to one that takes long.
    while prefill.len() < 3 && prefill.iter().sum::<f64>() < LONG_PREFILL {
        context.truncate(0, 0);
        let parts = prompt.chunks(N_BATCH).enumerate();
        let seconds = parts.map(|(i, part)| pass(&mut context, i * N_BATCH, part, Outputs::Last));
        prefill.push(seconds.sum());
    }
    choose_prefetching(&mut context, backend, rest[0]);
    // Measured before and after, because the machine may have become slower meanwhile.
    let before = backend.read_rate(Readers::All);
    warm_up(&mut context, rest[0]);
    let widths = width_costs(&mut context, rest, n_rounds);
    let read_rate = before.into_iter().chain(backend.read_rate(Readers::All));
    let read_rate = read_rate.max_by(f64::total_cmp);
    let read_rate_of_one = backend.read_rate(Readers::One);
    let decode = widths[0].pass_ms / 1e3;
    context.check()?;
    file.plan.check_unchanged()?;
    let prefetching = backend.prefetching();
    Ok(BenchReport {
        schema_version: SCHEMA_VERSION,
        provenance: None,
        model: file.path.display().to_string(),
        backend: backend.name(),
        n_threads,
        cpu: Some(cpu_model()),
        weight_bytes,
        n_prompt,
        prefill_tokens_per_s: n_prompt as f64 / median(prefill).expect("prefill was timed"),
        decode_tokens_per_s: 1.0 / decode,
        decode_gigabytes_per_s: weight_bytes as f64 / decode / 1e9,
        read_gigabytes_per_s: read_rate.map(|rate| rate / 1e9),
        read_gigabytes_per_s_of_one_thread: read_rate_of_one.map(|rate| rate / 1e9),
        prefetch_distance: prefetching.and_then(Prefetching::distance),
        prefetches_streams: prefetching == Some(Prefetching::Streams),
        read_bandwidth_share: read_rate.map(|rate| weight_bytes as f64 / decode / rate),
        n_rounds,
        widths,
        prefill: Vec::new(),
    })
}

/// Decodes until the backend has chosen what products prefetch, which it measures while it decodes.
fn choose_prefetching<B: Backend>(context: &mut Context<B>, backend: &B, token: u32) {
    /// Enough for the choice; some backends and types of weights have none.
    const MAX_PASSES: usize = 18;
    let start = context.len(0);
    for _ in 0..MAX_PASSES {
        if backend.prefetching().is_some() {
            break;
        }
        pass(context, start as usize, &[token], Outputs::All);
        context.truncate(0, start);
    }
}

/// Decodes for a while, so that the CPU's caches hold what they hold within a text. Small models fit in them.
fn warm_up<B: Backend>(context: &mut Context<B>, token: u32) {
    let (start, started) = (context.len(0), Instant::now());
    while started.elapsed() < WARM_UP {
        pass(context, start as usize, &[token], Outputs::All);
        context.truncate(0, start);
    }
}

/// Returns the seconds of a pass over tokens of sequence 0.
fn pass<B: Backend>(
    context: &mut Context<B>,
    start: usize,
    tokens: &[u32],
    outputs: Outputs,
) -> f64 {
    let mut batch = Batch::default();
    batch.push(0, start as u32, tokens, outputs);
    let started = Instant::now();
    context.run(&batch, None);
    // Greedy decoding does the same.
    context.download_likeliest();
    started.elapsed().as_secs_f64()
}

/// Returns the cost of passes over the first 1, 2, .. tokens, after the tokens that sequence 0
/// holds.
pub(crate) fn width_costs<B: Backend>(
    context: &mut Context<B>,
    tokens: &[u32],
    n_rounds: usize,
) -> Vec<WidthCost> {
    let mut times = WidthTimes::default();
    let task = Task::start("time passes", n_rounds as u64, Unit::Steps("rounds"));
    for _ in 0..n_rounds {
        times.round(context, tokens);
        task.advance(1);
    }
    times.costs()
}

/// Seconds of passes over 1, 2, .. tokens, by round.
#[derive(Default)]
pub(crate) struct WidthTimes(Vec<Vec<f64>>);

impl WidthTimes {
    /// Runs one more pass of each width over the first of these tokens, after the tokens that
    /// sequence 0 holds.
    pub(crate) fn round<B: Backend>(&mut self, context: &mut Context<B>, tokens: &[u32]) {
        let start = context.len(0);
        self.0.resize(self.0.len().max(tokens.len()), Vec::new());
        for (n, times) in (1..=tokens.len()).zip(&mut self.0) {
            times.push(pass(context, start as usize, &tokens[..n], Outputs::All));
            context.truncate(0, start);
        }
    }

    /// Returns the median cost of each width.
    pub(crate) fn costs(self) -> Vec<WidthCost> {
        let medians: Vec<f64> = self.0.into_iter().filter_map(median).collect();
        let costs = (1..).zip(&medians).map(|(n_tokens, seconds)| WidthCost {
            n_tokens,
            pass_ms: 1e3 * seconds,
            ratio: seconds / medians[0],
            break_even_accepted: (seconds / medians[0] - 1.0).max(0.0),
        });
        costs.collect()
    }
}
