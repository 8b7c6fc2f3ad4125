//! Drafting token by token with a model: each pass evaluates the tokens of the previous one, for
//! all sequences together, so there are as many passes as the longest draft has tokens.

use std::cmp::Ordering;

use kernels::backend::Backend;

use crate::batch::{Batch, NO_TOKEN, Outputs, TextSlice};
use crate::context::Context;
use crate::error::Error;
use crate::sample::Checked;

use super::{DraftRequest, DraftSampling};

/// Draft length of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftLimits {
    /// Maximum draft length.
    pub n_max: usize,
    /// Minimum draft length: a shorter draft is dropped.
    pub n_min: usize,
    /// A draft ends before the first token with a probability below this value, among its ten most
    /// likely tokens; 0 disables the check.
    pub p_min: f32,
}

/// Maximum draft length of a model unless another one is configured.
const DEFAULT_DRAFT: usize = 3;

impl Default for DraftLimits {
    fn default() -> DraftLimits {
        DraftLimits::of_length(DEFAULT_DRAFT)
    }
}

impl DraftLimits {
    /// Returns a configuration with a fixed draft length.
    pub fn of_length(n_max: usize) -> DraftLimits {
        DraftLimits {
            n_max,
            n_min: 0,
            p_min: 0.0,
        }
    }
}

/// Number of most likely tokens among which a probability is measured.
const N_LIKELIEST: usize = 10;

/// Returns the probability of the most likely token among the [`N_LIKELIEST`].
pub(super) fn top_probability(logits: &[f32]) -> f64 {
    // In descending order; NaN sorts first, so that it shows.
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
    probability_of_largest(&top)
}

/// Returns the probability of the largest of these logits among them.
pub(super) fn probability_of_largest(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |&logit: &f32| f64::from(logit - largest).exp();
    1.0 / logits.iter().map(weight).sum::<f64>()
}

/// Fills in the drafts. The first pass also evaluates `leads`, the tokens of each text that the
/// context lacks. Afterwards the context holds these, the newest token, and all but the last token
/// of the draft.
///
/// A head also reads hidden states: `hidden` holds those of the first pass, row by row, and is
/// overwritten with the head's own after each step.
pub(super) fn draft_tokens<B: Backend>(
    context: &mut Context<B>,
    config: &DraftLimits,
    requests: &mut [DraftRequest<'_>],
    leads: &[TextSlice<'_>],
    hidden: Option<&mut B::Buffer>,
) -> Result<(), Error> {
    let mut batch = Batch::default();
    for (request, lead) in requests.iter().zip(leads) {
        let position = context.len(request.seq);
        batch.push_slice(request.seq, position, *lead, Outputs::None);
        let position = position + lead.len() as u32;
        batch.push(request.seq, position, &[request.last], Outputs::All);
    }
    let is_greedy = |request: &DraftRequest<'_>| matches!(request.sampling, DraftSampling::Greedy);
    match config.p_min == 0.0 && requests.iter().all(is_greedy) && context.takes_chosen() {
        true => draft_on_device(context, requests, batch, hidden),
        false => draft_on_host(context, config, requests, batch, hidden),
    }
}

/// Gathers the hidden states of some rows of the last pass as input of the next one.
fn carry<B: Backend>(context: &Context<B>, rows: &[usize], hidden: Option<&mut B::Buffer>) {
    if let Some(hidden) = hidden {
        let width = context.model().hparams.hidden_width() as usize;
        let backend = context.backend();
        backend.gather_rows(context.carried(), width, rows, hidden);
    }
}

/// Drafts with the logits of every step on the host.
fn draft_on_host<B: Backend>(
    context: &mut Context<B>,
    config: &DraftLimits,
    requests: &mut [DraftRequest<'_>],
    mut batch: Batch,
    mut hidden: Option<&mut B::Buffer>,
) -> Result<(), Error> {
    let mut active: Vec<usize> = (0..requests.len()).collect();
    while !active.is_empty() {
        context.forward(&batch, hidden.as_deref());
        let unfinished = take_tokens(context, config, requests, &active)?;
        let rows: Vec<usize> = unfinished.iter().map(|&row| batch.outputs[row]).collect();
        carry(context, &rows, hidden.as_deref_mut());
        active = unfinished.iter().map(|&row| active[row]).collect();
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

/// Adds a token to each active draft, from the logits of the last pass, which has an output row for each.
/// Returns the rows of the drafts that are not finished.
pub(super) fn take_tokens<B: Backend>(
    context: &Context<B>,
    config: &DraftLimits,
    requests: &mut [DraftRequest<'_>],
    active: &[usize],
) -> Result<Vec<usize>, Error> {
    let model = context.model();
    let mut unfinished = Vec::new();
    for (row, logits) in context.logits().chunks_exact(model.n_out()).enumerate() {
        let probability = || top_probability(logits);
        let token = |row| model.token(row);
        let request = &mut requests[active[row]];
        if take_token(token, config, request, logits, probability)? {
            unfinished.push(row);
        }
    }
    Ok(unfinished)
}

/// Adds a token to a draft, from a row of logits, unless the token's probability is below `p_min`; `token`
/// maps the index of a logit to a token. Returns false where the draft is finished.
pub(super) fn take_token(
    token: impl Fn(u32) -> u32,
    limits: &DraftLimits,
    request: &mut DraftRequest<'_>,
    logits: &[f32],
    probability: impl FnOnce() -> f64,
) -> Result<bool, Error> {
    if limits.p_min > 0.0 && probability() < f64::from(limits.p_min) {
        if request.draft.len() < limits.n_min {
            request.draft.clear();
            request.distributions.clear();
        }
        return Ok(false);
    }
    let position = (request.history.len() + 1 + request.draft.len()) as u64;
    let (token, distribution) = request.sampling.token(logits, position, token)?;
    request.draft.push(token);
    request.distributions.extend(distribution);
    Ok(request.draft.len() < request.n_max)
}

/// Drafts greedily on the device: the chosen tokens stay there until the last step, so the host
/// never waits for one step before it starts the next.
fn draft_on_device<B: Backend>(
    context: &mut Context<B>,
    requests: &mut [DraftRequest<'_>],
    mut batch: Batch,
    mut hidden: Option<&mut B::Buffer>,
) -> Result<(), Error> {
    // The request of each row of a pass, step after step.
    let mut rows: Vec<usize> = (0..requests.len()).collect();
    context.run(&batch, hidden.as_deref());
    context.choose(0);
    let (mut step, mut n_steps) = (0..rows.len(), 1);
    loop {
        let is_unfinished = |&place: &usize| requests[rows[place]].n_max > n_steps;
        let places: Vec<usize> = step.clone().filter(is_unfinished).collect();
        if places.is_empty() {
            break;
        }
        let outputs = places
            .iter()
            .map(|&place| batch.outputs[place - step.start]);
        carry(context, &outputs.collect::<Vec<_>>(), hidden.as_deref_mut());
        batch.clear();
        for &place in &places {
            let request = rows[place];
            let seq = requests[request].seq;
            batch.push(seq, context.len(seq), &[NO_TOKEN], Outputs::All);
            rows.push(request);
        }
        context.run_chosen(&batch, &places, hidden.as_deref());
        step = step.end..rows.len();
        context.choose(step.start);
        n_steps += 1;
    }
    let n_out = context.model().n_out();
    for (&request, found) in rows.iter().zip(context.download_chosen(rows.len())) {
        let (token, _) = found.checked(n_out)?;
        requests[request].draft.push(token);
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
