//! Drafting token by token with a model: each pass feeds on the tokens of the one before, for all
//! sequences together, so there are as many passes as the longest draft has tokens.

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs};
use crate::context::Context;
use crate::error::Error;

use super::DraftRequest;

/// How long the drafts of a model are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainConfig {
    /// Most tokens.
    pub n_max: usize,
    /// Fewest: a draft that ends before is dropped.
    pub n_min: usize,
    /// A draft ends before the first token that the model gives less than this, among its ten
    /// likeliest; 0 never ends one.
    pub p_min: f32,
}

impl ChainConfig {
    /// Always that many tokens.
    pub fn of_length(n_max: usize) -> ChainConfig {
        ChainConfig {
            n_max,
            n_min: 0,
            p_min: 0.0,
        }
    }
}

/// Tokens among which a probability is measured.
const N_LIKELIEST: usize = 10;

/// The probability of the likeliest token among the [`N_LIKELIEST`].
fn top_probability(logits: &[f32]) -> f64 {
    let mut top: Vec<f32> = logits.to_vec();
    let n = N_LIKELIEST.min(top.len());
    top.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
    let max = top[..n].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |&logit: &f32| f64::from(logit - max).exp();
    // The sum does not depend on how the others were put in order.
    top[..n].sort_by(|a, b| b.total_cmp(a));
    1.0 / top[..n].iter().map(weight).sum::<f64>()
}

/// Fills in the drafts, behind what the context holds, and leaves its caches as they were.
///
/// A head also feeds on hidden states: `hidden` holds those of the requests, in order, and is
/// overwritten with the head's own from step to step.
pub(super) fn draft_chain<B: Backend>(
    context: &mut Context<B>,
    config: &ChainConfig,
    requests: &mut [DraftRequest<'_>],
    mut hidden: Option<&mut B::Buffer>,
) -> Result<(), Error> {
    let n_out = context.model().n_out();
    let n_embd = context.model().hparams.n_embd as usize;
    let held: Vec<u32> = requests.iter().map(|r| context.len(r.seq)).collect();
    let mut active: Vec<usize> = (0..requests.len()).collect();
    let mut batch = Batch::default();
    while !active.is_empty() {
        batch.clear();
        for &i in &active {
            let request = &requests[i];
            let token = *request.draft.last().unwrap_or(&request.last);
            let position = context.len(request.seq);
            batch.push(request.seq, position, &[token], Outputs::All);
        }
        let logits = context.forward(&batch, hidden.as_deref());
        let mut rows = Vec::new();
        for (row, logits) in logits.chunks_exact(n_out).enumerate() {
            let request = &mut requests[active[row]];
            if config.p_min > 0.0 && top_probability(logits) < f64::from(config.p_min) {
                if request.draft.len() < config.n_min {
                    request.draft.clear();
                    request.guesses.clear();
                }
                continue;
            }
            let position = (request.history.len() + 1 + request.draft.len()) as u64;
            let token = |row| context.model().token(row);
            let (guess, guesses) = request.guessing.guess(logits, position, token)?;
            request.draft.push(guess);
            request.guesses.extend(guesses);
            if request.draft.len() < request.n_max {
                rows.push(row);
            }
        }
        active = rows.iter().map(|&row| active[row]).collect();
        if let Some(hidden) = hidden.as_deref_mut() {
            context
                .backend()
                .gather_rows(context.carried(), n_embd, &rows, hidden);
        }
    }
    for (request, held) in requests.iter().zip(held) {
        context.truncate(request.seq, held)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probability_is_that_among_ten() {
        assert_eq!(top_probability(&[3.0]), 1.0);
        assert_eq!(top_probability(&[0.0, 0.0]), 0.5);
        assert_eq!(top_probability(&[1.0; 40]), 0.1);
        let p = top_probability(&[0.0, 2.0, f32::NEG_INFINITY]);
        assert!((p - 1.0 / (1.0 + (-2.0f64).exp())).abs() < 1e-12, "{p}");
    }
}
