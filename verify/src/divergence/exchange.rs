//! [`Exchange`]: effects of exchanged weights on a model. The base is evaluated once; each variant of it is
//! compared with the saved distributions, together with its MTP head.

use std::path::Path;
use std::sync::Arc;

use kernels::backend::Backend;
use kernels::distribution::Distribution;
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::loaded_models::{ObservedDraft, load_observed};
use runner::model_files::Files;
use runner::observe::{InputObserver, InputRows, ObservedTensor};
use runner::speculate::DraftKind;
use schemas::report::Estimate;

use crate::error::Error;
use crate::perplexity::Text;
use crate::scores::N_ROWS;

use super::logits_file::{LogitsReader, LogitsWriter};
use super::row::score_rows;
use super::{Part, for_each_row, forward, parts, statistics};

/// Size of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeConfig {
    /// Chunk length in tokens.
    pub n_ctx: usize,
    /// Maximum number of chunks.
    pub n_chunks_max: Option<usize>,
    /// Element types of the KV caches.
    pub types: CacheTypes,
}

/// Effect of exchanged weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Mean divergence of the target from the base.
    pub kld: Estimate,
    /// Expected acceptance of the head's first draft token at temperature 1: the overlap of its distribution with
    /// the target's. `None` without a head that has the target's vocabulary.
    pub acceptance: Option<f64>,
}

/// Receives the logits of scored positions, and the tokens that follow them.
type Score<'a> = dyn FnMut(&[f32], &[u32]) -> Result<(), Error> + 'a;

/// A text with the distributions of the base.
pub struct Exchange<'a, B: Backend> {
    backend: &'a Arc<B>,
    chunks: Vec<Vec<u32>>,
    config: ExchangeConfig,
    logits: &'a Path,
    /// Acceptance of the base's head.
    pub base_acceptance: Option<f64>,
}

impl<'a, B: Backend> Exchange<'a, B> {
    /// Evaluates the base, and writes its distributions to the file `logits`.
    ///
    /// # Errors
    /// The model cannot be used, the text is shorter than a chunk, or the file cannot be written.
    pub fn new(
        backend: &'a Arc<B>,
        base: &Files,
        text: &Text,
        config: ExchangeConfig,
        logits: &'a Path,
    ) -> Result<Exchange<'a, B>, Error> {
        let chunks = chunks(text, config)?;
        let mut exchange = Exchange {
            backend,
            chunks,
            config,
            logits,
            base_acceptance: None,
        };
        let tokens = exchange.chunks.concat();
        let n_vocab = base.model.hparams.n_vocab as usize;
        let mut writer = LogitsWriter::create(logits, config.n_ctx, n_vocab, &tokens)?;
        exchange.base_acceptance = exchange.evaluate(base, &mut |rows, _| {
            rows.chunks_exact(n_vocab)
                .try_for_each(|row| writer.push(row))
        })?;
        writer.publish()?;
        Ok(exchange)
    }

    /// Measures a variant of the base.
    ///
    /// # Errors
    /// The model cannot be used, or the file with the base's distributions cannot be read.
    pub fn measure(&self, variant: &Files) -> Result<Effect, Error> {
        let mut base = LogitsReader::open(self.logits)?;
        let n_vocab = base.header.n_vocab;
        let mut klds = Vec::new();
        let acceptance = self.evaluate(variant, &mut |rows, next| {
            let scores = score_rows(&base.rows(next.len())?, rows, n_vocab, next);
            klds.extend(scores.iter().map(|score| score.kld));
            Ok(())
        })?;
        Ok(Effect {
            kld: statistics::mean(&klds),
            acceptance,
        })
    }

    /// Number of scored positions.
    pub fn n_scored(&self) -> usize {
        let scored = parts(self.config.n_ctx).filter(|part| part.is_scored);
        self.chunks.len() * scored.map(|part| part.end - part.start).sum::<usize>()
    }

    /// Evaluates all chunks; calls `score` for scored positions. Returns the acceptance of the head.
    fn evaluate(&self, files: &Files, score: &mut Score<'_>) -> Result<Option<f64>, Error> {
        let sizes = ContextConfig {
            cache: CacheConfig {
                n_seq: 1,
                n_ctx: self.config.n_ctx,
                n_rollback: 0,
                types: self.config.types,
            },
            n_batch: N_ROWS,
            n_outputs: N_ROWS,
        };
        let observer: Arc<dyn InputObserver> = Arc::new(NoObserver);
        // Without draft files, the only speculator is the model's own head.
        let head = files.default_spec_types().into_iter().next();
        let loaded = load_observed(files, self.backend, head, sizes, &observer)?;
        let mut target = loaded.target;
        let n_vocab = target.model().n_out();
        let fits = |draft: &ObservedDraft<B>| {
            draft.kind == DraftKind::Mtp && draft.context.model().n_out() == n_vocab
        };
        let mut head = loaded
            .draft
            .filter(fits)
            .map(|draft| Head::new(draft.context));
        for chunk in &self.chunks {
            target.truncate(0, 0);
            for part in parts(self.config.n_ctx) {
                forward(&mut target, part, &chunk[part.start..part.end])?;
                if part.is_scored {
                    let next = &chunk[part.start + 1..=part.end];
                    score(&target.logits()[..next.len() * n_vocab], next)?;
                }
                if let Some(head) = &mut head {
                    head.follow(&target, part, chunk, n_vocab);
                }
            }
        }
        files.check_unchanged()?;
        Ok(head.and_then(|head| head.acceptance()))
    }
}

/// Returns the complete chunks of a text.
fn chunks(text: &Text, config: ExchangeConfig) -> Result<Vec<Vec<u32>>, Error> {
    let n_ctx = config.n_ctx;
    if text.tokens.len() < n_ctx {
        return Err(Error::ShortText {
            text: text.name.clone(),
            n_tokens: text.tokens.len(),
            n_ctx,
        });
    }
    let chunks = text.tokens.chunks_exact(n_ctx).map(|chunk| {
        let mut chunk = chunk.to_vec();
        chunk[0] = text.bos.unwrap_or(chunk[0]);
        chunk
    });
    Ok(chunks
        .take(config.n_chunks_max.unwrap_or(usize::MAX))
        .collect())
}

/// The first MTP head of a model, which evaluates the text on the target's hidden states.
struct Head<B: Backend> {
    context: Context<B>,
    /// States of the rows of a pass: (n_batch, n_embd).
    states: B::Buffer,
    /// Logits of the head for the token after the next, at the last position of the pass before.
    pending: Option<Vec<f32>>,
    /// Overlap of the distributions at each position.
    overlaps: Vec<f64>,
}

impl<B: Backend> Head<B> {
    fn new(context: Context<B>) -> Head<B> {
        let n_embd = context.model().hparams.n_embd as usize;
        let states = context.backend().scratch(context.config().n_batch * n_embd);
        Head {
            context,
            states,
            pending: None,
            overlaps: Vec::new(),
        }
    }

    /// Evaluates each token that follows a token of the pass, with the state of the token before it. Compares its
    /// distribution with that of the target one position later.
    fn follow(&mut self, target: &Context<B>, part: Part, chunk: &[u32], n_vocab: usize) {
        let n = part.end - part.start;
        let n_embd = self.context.model().hparams.n_embd as usize;
        let backend = self.context.backend();
        backend.copy_rows(target.carried(), 0, &mut self.states, 0, n_embd, n);
        let start = part.start as u32 + 1;
        match part.start {
            0 => self.context.restart(0, start),
            _ => _ = self.context.truncate(0, start),
        }
        let mut batch = Batch::default();
        let next = &chunk[part.start + 1..=part.end];
        batch.push(0, start, next, Outputs::None);
        self.context.run(&batch, Some(&self.states));
        if !part.is_scored {
            self.pending = None;
            return;
        }
        let rows: Vec<usize> = (0..n).collect();
        let drafted = self.context.compute_logits(&rows);
        let expected = target.logits();
        let row = |logits: &'_ [f32], i: usize| logits[i * n_vocab..][..n_vocab].to_vec();
        if let Some(pending) = &self.pending {
            self.overlaps.push(overlap(&expected[..n_vocab], pending));
        }
        self.overlaps.extend(for_each_row(n - 1, |i| {
            let drafted = &drafted[i * n_vocab..][..n_vocab];
            overlap(&expected[(i + 1) * n_vocab..][..n_vocab], drafted)
        }));
        self.pending = Some(row(drafted, n - 1));
    }

    fn acceptance(&self) -> Option<f64> {
        let n = self.overlaps.len();
        (n > 0).then(|| self.overlaps.iter().sum::<f64>() / n as f64)
    }
}

/// Probability that two distributions share: the acceptance rate of speculative sampling.
fn overlap(target: &[f32], draft: &[f32]) -> f64 {
    Distribution::of(target).overlap(&Distribution::of(draft))
}

/// Observes nothing.
struct NoObserver;

impl InputObserver for NoObserver {
    fn register(&self, _: &ObservedTensor<'_>) -> Option<usize> {
        None
    }

    fn observe(&self, _: usize, _: &InputRows<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_by_hand() {
        // 3/4 and 1/4 against 1/2 and 1/2.
        let found = overlap(&[3f32.ln(), 0.0], &[1.0, 1.0]);
        assert!((found - 0.75).abs() < 1e-6, "{found}");
        assert!((overlap(&[0.5, 2.0], &[0.5, 2.0]) - 1.0).abs() < 1e-6);
    }
}
