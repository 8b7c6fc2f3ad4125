//! Drafting token by token with a model: each pass feeds on the tokens of the one before, for all
//! sequences together, so there are as many passes as the longest draft has tokens.

use std::cmp::Ordering;

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, TextPart};
use crate::context::Context;
use crate::error::Error;

use super::DraftRequest;

/// How long the drafts of a model are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    // In falling order; a NaN goes in front of all, so that it shows.
    let mut top = [f32::NEG_INFINITY; N_LIKELIEST];
    let is_above =
        |x: f32, y: f32| !matches!(x.partial_cmp(&y), Some(Ordering::Less | Ordering::Equal));
    for &logit in logits {
        if is_above(logit, top[N_LIKELIEST - 1]) {
            let place = top.partition_point(|&x| !is_above(logit, x));
            top[place..].rotate_right(1);
            top[place] = logit;
        }
    }
    let weight = |&logit: &f32| f64::from(logit - top[0]).exp();
    1.0 / top.iter().map(weight).sum::<f64>()
}

/// Fills in the drafts. The first pass also takes what the context still lacks of each text, `leads`;
/// afterwards the context holds that, the newest token, and the draft but for its last token.
///
/// A head also feeds on hidden states: `hidden` holds those of the first pass, row by row, and is
/// overwritten with the head's own from step to step.
pub(super) fn draft_chain<B: Backend>(
    context: &mut Context<B>,
    config: &ChainConfig,
    requests: &mut [DraftRequest<'_>],
    leads: &[TextPart<'_>],
    mut hidden: Option<&mut B::Buffer>,
) -> Result<(), Error> {
    let n_out = context.model().n_out();
    let n_embd = context.model().hparams.n_embd as usize;
    let mut batch = Batch::default();
    for (request, lead) in requests.iter().zip(leads) {
        let position = context.len(request.seq);
        batch.push_part(request.seq, position, *lead, Outputs::None);
        let position = position + lead.len() as u32;
        batch.push(request.seq, position, &[request.last], Outputs::All);
    }
    let mut active: Vec<usize> = (0..requests.len()).collect();
    while !active.is_empty() {
        context.forward(&batch, hidden.as_deref());
        let mut going_on = Vec::new();
        for (row, logits) in context.logits().chunks_exact(n_out).enumerate() {
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
                going_on.push(row);
            }
        }
        if let Some(hidden) = hidden.as_deref_mut() {
            let rows: Vec<usize> = going_on.iter().map(|&row| batch.outputs[row]).collect();
            let backend = context.backend();
            backend.gather_rows(context.carried(), n_embd, &rows, hidden);
        }
        active = going_on.iter().map(|&row| active[row]).collect();
        batch.clear();
        for &i in &active {
            let request = &requests[i];
            let position = context.len(request.seq);
            let newest = request.draft.last().copied();
            batch.push(request.seq, position, newest.as_slice(), Outputs::All);
        }
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
