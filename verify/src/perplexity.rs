//! Perplexity, computed as llama.cpp does: over whole chunks of a text, each starting with the BOS
//! token if the model has one; the second half of each chunk is scored.

use std::sync::Arc;

use kernels::backend::Backend;
use kernels::distribution::Distribution;
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::ContextConfig;
use runner::loaded_models::load_context;
use runner::model_files::ModelFile;
use schemas::progress::{Task, Unit};
use schemas::report::{PerplexityReport, SCHEMA_VERSION};

use crate::error::Error;
use crate::scores::{N_ROWS, each_row};

/// A text to score.
#[derive(Clone, Debug)]
pub struct Text {
    /// Name for the report.
    pub name: String,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The token that replaces the first one of each chunk, if texts begin with one.
    pub bos: Option<u32>,
}

/// Scores the tokens of a text in chunks of `n_ctx`, with caches of the given types.
///
/// # Errors
/// The model cannot be used, or the text is shorter than one chunk.
pub fn perplexity<B: Backend>(
    backend: &Arc<B>,
    file: &ModelFile,
    text: &Text,
    n_ctx: usize,
    types: CacheTypes,
) -> Result<PerplexityReport, Error> {
    if text.tokens.len() < n_ctx {
        return Err(Error::ShortText {
            text: text.name.clone(),
            n_tokens: text.tokens.len(),
            n_ctx,
        });
    }
    let sizes = ContextConfig {
        cache: CacheConfig {
            n_seq: 1,
            n_ctx,
            n_rollback: 0,
            types,
        },
        n_batch: N_ROWS,
        n_outputs: N_ROWS,
    };
    let mut context = load_context(file, backend, sizes)?;
    let chunks = text.tokens.chunks_exact(n_ctx);
    let n_chunks = chunks.len();
    let task = Task::start("perplexity", n_chunks as u64, Unit::Steps("chunks"));
    let mut scores = Vec::new();
    for chunk in chunks {
        let mut chunk = chunk.to_vec();
        chunk[0] = text.bos.unwrap_or(chunk[0]);
        each_row(&mut context, chunk[..].into(), |position, row| {
            if let Some(&next) = chunk.get(position + 1)
                && position >= n_ctx / 2
            {
                scores.push(Distribution::of(row).surprise(next));
            }
        })?;
        task.advance(1);
    }
    file.plan.check_unchanged()?;
    let n = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / n;
    let squares = scores.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
    let perplexity = mean.exp();
    Ok(PerplexityReport {
        schema_version: SCHEMA_VERSION,
        model: file.path.display().to_string(),
        text: text.name.clone(),
        n_ctx,
        n_chunks,
        n_scored: scores.len(),
        perplexity,
        // Error propagation of the mean through `exp`.
        standard_error: perplexity * (squares / n / (n - 1.0)).sqrt(),
    })
}
