//! What a pass costs by its width: the number that decides whether drafting pays.

use std::sync::Arc;
use std::time::Instant;

use kernels::backend::Backend;
use schemas::report::{BenchReport, SCHEMA_VERSION, WidthCost};

use crate::batch::{Batch, Outputs};
use crate::cache::{CacheConfig, CacheTypes};
use crate::context::{Context, ContextConfig};
use crate::cpu_model::cpu_model;
use crate::error::Error;
use crate::load::{N_BATCH, Opened};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct BenchConfig {
    /// Tokens before those that are measured.
    pub n_prompt: usize,
    /// Widest pass.
    pub n_width: usize,
    /// Rounds, in each of which every width has one pass.
    pub n_rounds: usize,
    /// Threads of the backend, for the report.
    pub n_threads: usize,
    /// How caches keep keys and values.
    pub types: CacheTypes,
}

/// Times passes of every width in turn, so that a slow moment of the machine hits all of them.
///
/// # Errors
/// The model cannot be used.
pub fn bench<B: Backend>(
    backend: &Arc<B>,
    file: &Opened,
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
    let mut context = file.context(backend, sizes)?;
    let weight_bytes = context.model().pass_bytes as u64;
    // Any tokens cost the same; these are spread over the vocabulary.
    let tokens: Vec<u32> = (0..(n_prompt + n_width) as u64)
        .map(|i| (i * 2_654_435_761 % n_vocab) as u32)
        .collect();
    let (prompt, rest) = tokens.split_at(n_prompt);
    let mut prefill = Vec::new();
    // The first time reads the weights from disk.
    for _ in 0..3 {
        context.truncate(0, 0);
        let parts = prompt.chunks(N_BATCH).enumerate();
        let seconds = parts.map(|(i, part)| pass(&mut context, i * N_BATCH, part, Outputs::Last));
        prefill.push(seconds.sum());
    }
    // Measured before and after, as a machine may have become slower meanwhile.
    let before = backend.read_rate();
    let widths = width_costs(&mut context, rest, n_rounds);
    let read_rate = before.into_iter().chain(backend.read_rate());
    let read_rate = read_rate.max_by(f64::total_cmp);
    let decode = widths[0].pass_ms / 1e3;
    context.check()?;
    Ok(BenchReport {
        schema_version: SCHEMA_VERSION,
        model: file.path.display().to_string(),
        backend: backend.name(),
        n_threads,
        cpu: Some(cpu_model()),
        weight_bytes,
        n_prompt,
        prefill_tokens_per_s: n_prompt as f64 / median(&mut prefill),
        decode_tokens_per_s: 1.0 / decode,
        decode_gigabytes_per_s: weight_bytes as f64 / decode / 1e9,
        read_gigabytes_per_s: read_rate.map(|rate| rate / 1e9),
        read_bandwidth_share: read_rate.map(|rate| weight_bytes as f64 / decode / rate),
        n_rounds,
        widths,
        prefill: Vec::new(),
    })
}

/// Seconds of a pass over tokens of the first sequence.
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
    // As greedy decoding does.
    context.download_likeliest();
    started.elapsed().as_secs_f64()
}

/// What passes over 1, 2, .. of these tokens cost behind what the first sequence holds.
pub(crate) fn width_costs<B: Backend>(
    context: &mut Context<B>,
    tokens: &[u32],
    n_rounds: usize,
) -> Vec<WidthCost> {
    let mut times = WidthTimes::default();
    for _ in 0..n_rounds {
        times.round(context, tokens);
    }
    times.costs()
}

/// Seconds of passes over 1, 2, .. tokens, round by round.
#[derive(Default)]
pub(crate) struct WidthTimes(Vec<Vec<f64>>);

impl WidthTimes {
    /// One more pass of each width over the first of these tokens, behind what the first sequence holds.
    pub(crate) fn round<B: Backend>(&mut self, context: &mut Context<B>, tokens: &[u32]) {
        let start = context.len(0);
        self.0.resize(self.0.len().max(tokens.len()), Vec::new());
        for (n, times) in (1..=tokens.len()).zip(&mut self.0) {
            times.push(pass(context, start as usize, &tokens[..n], Outputs::All));
            context.truncate(0, start);
        }
    }

    /// Medians.
    pub(crate) fn costs(mut self) -> Vec<WidthCost> {
        let medians: Vec<f64> = self.0.iter_mut().map(|times| median(times)).collect();
        let costs = (1..).zip(&medians).map(|(n_tokens, seconds)| WidthCost {
            n_tokens,
            pass_ms: 1e3 * seconds,
            ratio: seconds / medians[0],
            break_even_accepted: (seconds / medians[0] - 1.0).max(0.0),
        });
        costs.collect()
    }
}

/// The one in the middle; the upper one of two.
pub(crate) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
