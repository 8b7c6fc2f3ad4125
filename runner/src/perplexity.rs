//! Perplexity, counted as llama.cpp counts it: whole chunks of a text, each with the beginning of
//! a text in its first place if the model has one, of each the second half.

use std::sync::Arc;

use kernels::backend::Backend;
use schemas::report::{PerplexityReport, SCHEMA_VERSION};

use crate::cache::{CacheConfig, CacheTypes};
use crate::context::ContextConfig;
use crate::error::Error;
use crate::load::Opened;
use crate::scores::{N_ROWS, each_row, log_sum_exp};

/// A text to score.
#[derive(Clone, Debug)]
pub struct Text {
    /// Its name, for the report.
    pub name: String,
    /// What it says.
    pub tokens: Vec<u32>,
    /// The token that takes the first place of each chunk, if texts begin with one.
    pub bos: Option<u32>,
}

/// Scores the tokens of a text in chunks of `n_ctx`, with caches of some types.
///
/// # Errors
/// The model cannot be used, or the text has not one whole chunk.
pub fn perplexity<B: Backend>(
    backend: &Arc<B>,
    file: &Opened,
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
    let mut context = file.context(backend, sizes)?;
    let chunks = text.tokens.chunks_exact(n_ctx);
    let n_chunks = chunks.len();
    let mut scores = Vec::new();
    for chunk in chunks {
        let mut chunk = chunk.to_vec();
        chunk[0] = text.bos.unwrap_or(chunk[0]);
        each_row(&mut context, &chunk, |position, row| {
            if let Some(&next) = chunk.get(position + 1)
                && position >= n_ctx / 2
            {
                scores.push(log_sum_exp(row) - f64::from(row[next as usize]));
            }
        })?;
    }
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
        // The derivative of `exp` carries the error of the mean over.
        standard_error: perplexity * (squares / n / (n - 1.0)).sqrt(),
    })
}
