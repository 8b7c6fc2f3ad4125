//! Checks that the logits of a text depend on the text alone: not on the split into passes, their
//! width, the other sequences of a batch, earlier rollbacks, or the number of threads.

use kernels::backend::Backend;
use runner::batch::{Batch, Outputs};
use runner::cache::CacheConfig;
use runner::context::{Context, ContextConfig};
use runner::hash::LogitsHash;
use runner::loaded_models::LoadedModels;
use runner::sample::splitmix64;
use schemas::progress::{Task, Unit};
use schemas::report::{InvarianceReport, RowDifference, Verdict};

use crate::error::Error;

use super::{Machine, VerifyConfig};

/// Maximum number of tokens of one sequence in a pass.
const MAX_WIDTH: usize = 24;
/// Maximum number of positions rolled back, which are then evaluated again.
const MAX_BACK: usize = 6;
/// Number of parallel sequences.
const N_SEQ: usize = 3;
/// Maximum number of differences listed in a report.
const N_LISTED: usize = 8;

/// Size of the invariance check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvarianceConfig {
    /// Number of texts, from the first prompt on.
    pub n_texts: usize,
    /// Maximum number of tokens per text.
    pub n_tokens: usize,
    /// Number of random schedules over all texts, for each number of threads.
    pub n_rounds: usize,
}

impl InvarianceConfig {
    /// A second or two with a small model.
    pub const QUICK: InvarianceConfig = InvarianceConfig {
        n_texts: 3,
        n_tokens: 48,
        n_rounds: 1,
    };
    /// Large enough to cover rare widths.
    pub const FULL: InvarianceConfig = InvarianceConfig {
        n_texts: 16,
        n_tokens: 512,
        n_rounds: 8,
    };
}

/// A text with its name.
#[derive(Clone, Debug)]
pub(crate) struct NamedText {
    pub(crate) id: String,
    pub(crate) tokens: Vec<u32>,
}

/// Evaluates texts token by token, each alone, and then in random schedules on every machine. A
/// model loaded on one machine runs on all of them.
///
/// # Errors
/// The caches exceed the address space.
pub(crate) fn invariance<B: Backend>(
    loaded: &LoadedModels<'_, B>,
    machines: &[&Machine<B>],
    texts: &[NamedText],
    config: &VerifyConfig,
) -> Result<InvarianceReport, Error> {
    let n_ctx = texts.iter().map(|text| text.tokens.len()).max();
    let sizes = |n_seq| ContextConfig {
        cache: CacheConfig {
            n_seq,
            n_ctx: n_ctx.unwrap_or_default(),
            n_rollback: MAX_WIDTH,
            types: config.options.caches.target,
        },
        n_batch: N_SEQ * MAX_WIDTH,
        n_outputs: N_SEQ * MAX_WIDTH,
    };
    let mut alone = loaded.target(sizes(1))?;
    let mut expected = Vec::new();
    for text in texts {
        alone.truncate(0, 0);
        let hashes: Vec<LogitsHash> = (0..)
            .zip(&text.tokens)
            .map(|(position, &token)| {
                let mut batch = Batch::default();
                batch.push(0, position, &[token], Outputs::All);
                hash(alone.forward(&batch, None))
            })
            .collect();
        expected.push(hashes);
    }
    let mut report = InvarianceReport {
        n_texts: texts.len() as u64,
        threads: machines
            .iter()
            .map(|machine| machine.n_threads as u32)
            .collect(),
        n_passes: 0,
        n_rows: 0,
        n_different: 0,
        differences: Vec::new(),
        verdict: Verdict::Pass,
    };
    let n_rounds = machines.len() * config.invariance.n_rounds;
    let task = Task::start("invariance", n_rounds as u64, Unit::Steps("rounds"));
    for (i, machine) in machines.iter().enumerate() {
        let mut context = loaded.target_on(&machine.backend, sizes(N_SEQ))?;
        for round in 0..config.invariance.n_rounds {
            let mut schedule = Schedule {
                texts,
                expected: &expected,
                n_threads: machine.n_threads as u32,
                random: Random {
                    seed: (i * config.invariance.n_rounds + round) as u64,
                    n: 0,
                },
                report: &mut report,
            };
            schedule.run(&mut context)?;
            context.check()?;
            task.advance(1);
        }
    }
    report.verdict = Verdict::of(report.n_different == 0);
    Ok(report)
}

fn hash(row: &[f32]) -> LogitsHash {
    let mut hash = LogitsHash::new();
    hash.update(row);
    hash
}

/// Random numbers that depend on a seed alone, so that a failure can be reproduced.
struct Random {
    seed: u64,
    n: u64,
}

impl Random {
    /// Returns a number from 0 to `max`, inclusive.
    fn up_to(&mut self, max: usize) -> usize {
        self.n += 1;
        (splitmix64(self.seed, self.n) % (max as u64 + 1)) as usize
    }
}

/// One random schedule over all texts.
struct Schedule<'a> {
    texts: &'a [NamedText],
    /// Hashes of the logits of each position, by text.
    expected: &'a [Vec<LogitsHash>],
    n_threads: u32,
    random: Random,
    report: &'a mut InvarianceReport,
}

impl Schedule<'_> {
    fn run<B: Backend>(&mut self, context: &mut Context<B>) -> Result<(), Error> {
        let mut waiting = 0..self.texts.len();
        // Text index of each sequence.
        let mut running: [Option<usize>; N_SEQ] = [None; N_SEQ];
        loop {
            for (seq, text) in running.iter_mut().enumerate() {
                // A sequence may stay idle as long as another one runs.
                if text.is_none() {
                    *text = waiting.next();
                    context.truncate(seq, 0);
                }
            }
            if running.iter().all(Option::is_none) {
                return Ok(());
            }
            let mut batch = Batch::default();
            for (seq, text) in running.iter().enumerate() {
                let Some(text) = *text else { continue };
                let tokens = &self.texts[text].tokens;
                let start = context.len(seq) as usize;
                let width = self.random.up_to(MAX_WIDTH).min(tokens.len() - start);
                batch.push(
                    seq,
                    start as u32,
                    &tokens[start..start + width],
                    Outputs::All,
                );
            }
            if batch.is_empty() {
                continue;
            }
            self.compare(&batch, &running, context.forward(&batch, None));
            for (seq, text) in running.iter_mut().enumerate() {
                let Some(index) = *text else { continue };
                let added = batch.seqs.iter().filter(|&&s| s == seq).count();
                let len = context.len(seq) as usize;
                if len == self.texts[index].tokens.len() {
                    *text = None;
                } else {
                    let n_back = self.random.up_to(MAX_BACK).min(added);
                    context.truncate(seq, (len - n_back) as u32);
                }
            }
        }
    }

    fn compare(&mut self, batch: &Batch, running: &[Option<usize>; N_SEQ], logits: &[f32]) {
        let n_vocab = logits.len() / batch.len();
        self.report.n_passes += 1;
        for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
            let (seq, position) = (batch.seqs[row], batch.positions[row]);
            let text = running[seq].expect("only sequences with a text are in the batch");
            let expected = self.expected[text][position as usize];
            let found = hash(logits);
            self.report.n_rows += 1;
            if found == expected {
                continue;
            }
            self.report.n_different += 1;
            if self.report.differences.len() < N_LISTED {
                self.report.differences.push(RowDifference {
                    prompt_id: self.texts[text].id.clone(),
                    position: position.into(),
                    n_tokens: batch.len() as u64,
                    n_sequences: running.iter().flatten().count() as u64,
                    n_threads: self.n_threads,
                    alone: expected.to_string(),
                    found: found.to_string(),
                });
            }
        }
    }
}
