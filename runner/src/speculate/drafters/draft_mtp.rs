//! `draft-mtp`: the target's MTP head, applied repeatedly to any depth; its chained heads, each of
//! which drafts one token; or an assistant, which attends to the target's keys and values.
//!
//! The head pairs the token at position `p` with the target's hidden state of `p - 1`; before position 0 that
//! state is zero. The first row of a batch therefore uses the last state before the batch: each sequence has
//! one pending row.

use kernels::backend::Backend;

use crate::context::Context;

use super::SpecType;
use crate::speculate::hidden_state_draft::HiddenStateDraft;
use crate::speculate::model_draft::DraftLimits;
use crate::speculate::spec::{DraftKind, ModelSpec, Parts, Spec, model_n_max, no_tables};
use crate::speculate::{AssistantDraft, Speculator};

pub(super) const SPEC: Spec = Spec {
    name: "draft-mtp",
    // Published rates of trained heads are 0.6 to 0.9. A head that is zeroed, shuffled or given the
    // wrong hidden state agrees with its target only on the most common tokens.
    acceptance_floor: Some(0.4),
    model: Some(ModelSpec {
        kind: DraftKind::Mtp,
        other_file: Some(DraftKind::Assistant),
        in_target: true,
        missing: "an MTP head or an assistant (-md FILE)",
        reads_hidden_states: true,
        takes_vocab_map: false,
    }),
    n_max: model_n_max,
    table_bytes: no_tables,
};

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let (context, limits) = (parts.context(), parts.config.limits);
    match context.model().hparams.assistant {
        Some(_) => Box::new(AssistantDraft::new(SpecType::DraftMtp, context, limits)),
        None => Box::new(mtp(context, limits)),
    }
}

/// Returns a speculator that drafts with this context's MTP head.
pub fn mtp<B: Backend>(context: Context<B>, limits: DraftLimits) -> HiddenStateDraft<B> {
    HiddenStateDraft::new(SpecType::DraftMtp, context, limits, 0, None)
}
