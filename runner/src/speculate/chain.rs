//! Drafting token by token with a model: each pass feeds on the tokens of the one before, for all
//! sequences together, so there are as many passes as the longest draft has tokens.

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs};
use crate::context::Context;
use crate::error::Error;
use crate::sample::argmax;

use super::DraftRequest;

/// Fills in the drafts greedily and leaves the context's caches as they were.
///
/// An MTP head also feeds on hidden states: `hidden` holds those of the requests, in order, and
/// is overwritten with the head's own from step to step.
pub(super) fn draft_chain<B: Backend>(
    context: &mut Context<B>,
    requests: &mut [DraftRequest<'_>],
    mut hidden: Option<&mut B::Buffer>,
) -> Result<(), Error> {
    let n_vocab = context.model().hparams.n_vocab as usize;
    let n_embd = context.model().hparams.n_embd as usize;
    let mut active: Vec<usize> = (0..requests.len()).collect();
    let mut batch = Batch::default();
    while !active.is_empty() {
        batch.clear();
        for &i in &active {
            let request = &requests[i];
            let token = *request.draft.last().unwrap_or(&request.last);
            let position = request.history.len() + request.draft.len();
            batch.push(request.seq, position as u32, &[token], Outputs::All);
        }
        let logits = context.forward(&batch, hidden.as_deref());
        let mut rows = Vec::new();
        for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
            let request = &mut requests[active[row]];
            let (token, _) = argmax(logits)?;
            request.draft.push(token);
            if request.draft.len() < request.n_max {
                rows.push(row);
            }
        }
        active = rows.iter().map(|&row| active[row]).collect();
        if let Some(hidden) = hidden.as_deref_mut() {
            context
                .backend()
                .gather_rows(context.hidden(), n_embd, &rows, hidden);
        }
    }
    for request in requests {
        context.truncate(request.seq, request.history.len() as u32)?;
    }
    Ok(())
}
