//! Logits after given tokens, for comparisons with other engines.

use std::sync::Arc;

use kernels::backend::Backend;
use runner::batch::{NO_TOKEN, TextSlice};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::ContextConfig;
use runner::hash::LogitsHash;
use runner::loaded_models::load_context;
use runner::model_files::ModelFile;
use schemas::report::{LogitsReport, PositionLogits, SCHEMA_VERSION, TokenLogit};

use crate::error::Error;
use crate::scores::{N_ROWS, each_row};

/// Evaluates a prompt as one sequence, with caches of the given types, and lists the `top` largest
/// logits after each.
///
/// # Errors
/// The model cannot be used, a token is outside its vocabulary, or an embedding has another width.
pub fn logits<B: Backend>(
    backend: &Arc<B>,
    file: &ModelFile,
    prompt: TextSlice<'_>,
    top: usize,
    types: CacheTypes,
) -> Result<LogitsReport, Error> {
    let n_vocab = file.hparams.n_vocab as usize;
    let id = || file.path.display().to_string();
    let TextSlice { tokens, embeddings } = prompt;
    let is_outside = |token: u32| token != NO_TOKEN && token as usize >= n_vocab;
    if let Some(&token) = tokens.iter().find(|&&token| is_outside(token)) {
        return Err(Error::Run(runner::Error::TokenRange {
            id: id(),
            token,
            n_vocab,
        }));
    }
    let (n_rows, width) = (embeddings.len(), file.hparams.n_embd as usize);
    if embeddings.iter().any(|row| row.len() != width) {
        return Err(Error::Run(runner::Error::Embeddings {
            id: id(),
            n_rows,
            found: embeddings.iter().map(|row| row.len()).collect(),
            width,
        }));
    }
    let cache = CacheConfig {
        n_seq: 1,
        n_ctx: tokens.len(),
        n_rollback: 0,
        types,
    };
    let sizes = ContextConfig {
        cache,
        n_batch: N_ROWS,
        n_outputs: N_ROWS,
    };
    let mut context = load_context(file, backend, sizes)?;
    let mut positions = Vec::with_capacity(tokens.len());
    each_row(&mut context, prompt, |_, row| {
        positions.push(position(row, top))
    })?;
    file.plan.check_unchanged()?;
    Ok(LogitsReport {
        schema_version: SCHEMA_VERSION,
        model: id(),
        tokens: tokens.to_vec(),
        positions,
    })
}

/// Returns the hash of a row and its `top` largest logits.
pub(crate) fn position(row: &[f32], top: usize) -> PositionLogits {
    let mut hash = LogitsHash::new();
    hash.update(row);
    let mut ids: Vec<usize> = (0..row.len()).collect();
    // The sort is stable: equal logits stay in order of id.
    ids.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let token = |&id: &usize| TokenLogit {
        id: id as u32,
        logit: row[id],
    };
    PositionLogits {
        logits_hash: hash.to_string(),
        top: ids.iter().take(top).map(token).collect(),
    }
}
