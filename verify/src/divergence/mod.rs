//! Kullback-Leibler divergence of quantized models from their base, as llama-perplexity defines it. All models
//! evaluate the text together, some tokens at a time, so nothing but sums and one number per position is kept.

pub mod exchange;
pub mod logits_file;
mod row;
mod scores;
mod statistics;

use std::convert::Infallible;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::backend::Backend;
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::loaded_models::load_context;
use runner::model_files::ModelFile;
use schemas::progress::{Task, Unit};
use schemas::report::KldReport;
use schemas::threads;

use crate::error::Error;
use crate::perplexity::Text;
use crate::scores::N_ROWS;

use logits_file::{LogitsReader, LogitsWriter};
use row::{BaseRow, RowScore, score_rows};
use scores::ModelScores;
pub use scores::Scores;

/// The distributions that others are compared with.
pub enum Base<'a> {
    /// A model, which evaluates the text too.
    Model(&'a ModelFile),
    /// A file with a text and the distributions.
    Logits(LogitsReader),
}

/// The size of a comparison.
#[derive(Clone, Debug)]
pub struct KldConfig {
    /// Chunk length in tokens.
    pub n_ctx: usize,
    /// Maximum number of chunks.
    pub n_chunks_max: Option<usize>,
    /// Element types of the KV caches.
    pub types: CacheTypes,
    /// File for the logits of the base.
    pub save: Option<PathBuf>,
}

/// Compares models with a base, over complete chunks of a text; the second half of each is scored. The result
/// has no provenance.
///
/// # Errors
/// A model cannot be used or has another vocabulary, the text is shorter than one chunk, or a file with logits
/// is damaged or cannot be written.
pub fn divergence<B: Backend>(
    backend: &Arc<B>,
    base: Base<'_>,
    files: &[ModelFile],
    text: &Text,
    config: &KldConfig,
) -> Result<KldReport, Error> {
    let n_chunks = n_chunks(text, config)?;
    let scores = score(backend, base, files, text, config, 0..n_chunks)?;
    Ok(scores.report())
}

/// Returns the number of chunks that are scored.
///
/// # Errors
/// The text is shorter than one chunk.
pub fn n_chunks(text: &Text, config: &KldConfig) -> Result<usize, Error> {
    let n_ctx = config.n_ctx;
    if text.tokens.len() < n_ctx {
        return Err(Error::ShortText {
            text: text.name.clone(),
            n_tokens: text.tokens.len(),
            n_ctx,
        });
    }
    Ok((text.tokens.len() / n_ctx).min(config.n_chunks_max.unwrap_or(usize::MAX)))
}

/// Scores some chunks of a text. Scores of consecutive ranges can be joined ([`Scores::append`]).
///
/// # Errors
/// See [`divergence`].
pub fn score<B: Backend>(
    backend: &Arc<B>,
    mut base: Base<'_>,
    files: &[ModelFile],
    text: &Text,
    config: &KldConfig,
    range: Range<usize>,
) -> Result<Scores, Error> {
    let n_ctx = config.n_ctx;
    let sizes = ContextConfig {
        cache: CacheConfig {
            n_seq: 1,
            n_ctx,
            n_rollback: 0,
            types: config.types,
        },
        n_batch: N_ROWS,
        n_outputs: N_ROWS,
    };
    let load = |file| load_context(file, backend, sizes);
    let mut base_context = match &base {
        Base::Model(file) => Some(load(file)?),
        Base::Logits(_) => None,
    };
    let contexts = files.iter().map(load);
    let mut contexts: Vec<Context<B>> = contexts.collect::<Result<_, _>>()?;
    let tokens = &text.tokens[range.start * n_ctx..range.end * n_ctx];
    let n_vocab = match &base {
        Base::Model(file) => file.hparams.n_vocab as usize,
        Base::Logits(reader) => reader.header.n_vocab,
    };
    if let Base::Logits(reader) = &mut base {
        reader.skip_chunks(range.start)?;
    }
    let mut saved = match &config.save {
        Some(path) => Some(LogitsWriter::create(path, n_ctx, n_vocab, tokens)?),
        None => None,
    };

    let task = Task::start("divergence", range.len() as u64, Unit::Steps("chunks"));
    let mut base_surprises = Vec::new();
    let mut scores: Vec<Vec<RowScore>> = vec![Vec::new(); files.len()];
    for chunk in tokens.chunks_exact(n_ctx) {
        let mut chunk = chunk.to_vec();
        chunk[0] = text.bos.unwrap_or(chunk[0]);
        for context in base_context.iter_mut().chain(&mut contexts) {
            context.truncate(0, 0);
        }
        for part in parts(n_ctx) {
            let next = chunk.get(part.start + 1..=part.end).unwrap_or_default();
            let next = if part.is_scored { next } else { &[] };
            let tokens = &chunk[part.start..part.end];
            let rows: Vec<BaseRow> = match (&mut base_context, &mut base) {
                (Some(context), _) => {
                    let logits = forward(context, part, tokens)?;
                    if let Some(saved) = &mut saved {
                        let rows = logits.chunks_exact(n_vocab).take(next.len());
                        rows.clone().try_for_each(|row| saved.push(row))?;
                    }
                    row::base_rows(logits, n_vocab, next.len())
                }
                (None, Base::Logits(reader)) => reader.rows(next.len())?,
                (None, Base::Model(_)) => unreachable!("the model of the base is loaded"),
            };
            let surprises = rows.iter().zip(next).map(|(row, &next)| row.surprise(next));
            base_surprises.extend(surprises);
            for (context, scores) in contexts.iter_mut().zip(&mut scores) {
                let logits = forward(context, part, tokens)?;
                scores.extend(score_rows(&rows, logits, n_vocab, next));
            }
        }
        task.advance(1);
    }
    if let Base::Model(file) = &base {
        file.plan.check_unchanged()?;
    }
    if let Some(saved) = saved {
        saved.publish()?;
    }
    let models = files.iter().zip(scores).map(|(file, rows)| {
        file.plan.check_unchanged()?;
        Ok(ModelScores::new(file, rows))
    });
    Ok(Scores {
        base: match &base {
            Base::Model(file) => file.path.display().to_string(),
            Base::Logits(reader) => reader.path.display().to_string(),
        },
        text: matches!(base, Base::Model(_)).then(|| text.name.clone()),
        n_ctx,
        n_chunks: range.len(),
        base_surprises,
        models: models.collect::<Result<Vec<ModelScores>, Error>>()?,
    })
}

/// Tokens of a chunk that are evaluated together.
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    end: usize,
    /// True if the logits are needed.
    is_scored: bool,
}

/// Position of the first token of a chunk after which the next token is scored.
fn first_scored(n_ctx: usize) -> usize {
    n_ctx / 2
}

/// Splits a chunk into parts that are scored or not.
fn parts(n_ctx: usize) -> impl Iterator<Item = Part> {
    let split = |start: usize, end: usize, is_scored: bool| {
        (start..end).step_by(N_ROWS).map(move |at| Part {
            start: at,
            end: end.min(at + N_ROWS),
            is_scored,
        })
    };
    let first = first_scored(n_ctx);
    // Nothing follows the last token.
    split(0, first, false).chain(split(first, n_ctx - 1, true))
}

/// Evaluates a part of a chunk; returns the logits after each token if they are needed.
fn forward<'c, B: Backend>(
    context: &'c mut Context<B>,
    part: Part,
    tokens: &[u32],
) -> Result<&'c [f32], Error> {
    let outputs = match part.is_scored {
        true => Outputs::All,
        false => Outputs::None,
    };
    let mut batch = Batch::default();
    batch.push(0, part.start as u32, tokens, outputs);
    context.forward(&batch, None);
    context.check()?;
    Ok(match part.is_scored {
        true => context.logits(),
        false => &[],
    })
}

/// Computes something for each row on all cores, in the order of the rows.
fn for_each_row<T: Send>(n_rows: usize, compute: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let rows: Vec<usize> = (0..n_rows).collect();
    let mapped = threads::try_map(&rows, || (), |(), &row| Ok::<T, Infallible>(compute(row)));
    mapped.unwrap_or_else(|never| match never {})
}

/// Adds a path to an error of a file with logits.
fn logits_error(path: &Path, message: impl ToString) -> Error {
    Error::Logits {
        path: path.to_path_buf(),
        message: message.to_string(),
    }
}
