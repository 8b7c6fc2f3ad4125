//! `draft-eagle3`: a draft that reads three hidden states of its target.
//!
//! The draft pairs the token at position `p + 1` with the target's fused features of `p`, at
//! position `p`. The newest position therefore has to wait for its token: each sequence has one
//! pending row, which the first token of the next batch completes.

use std::sync::Arc;

use kernels::backend::Backend;

use crate::context::Context;
use crate::model::Fusion;

use super::SpecType;
use crate::speculate::Speculator;
use crate::speculate::hidden_state_draft::HiddenStateDraft;
use crate::speculate::model_draft::DraftLimits;
use crate::speculate::spec::{
    DraftKind, DraftParts, ModelSpec, Parts, Spec, model_n_max, no_tables,
};

pub(super) const SPEC: Spec = Spec {
    name: "draft-eagle3",
    // Trained drafts are slightly below MTP heads, for any text.
    acceptance_floor: Some(0.3),
    model: Some(ModelSpec {
        kind: DraftKind::Eagle3,
        other_file: None,
        in_target: false,
        missing: "an EAGLE-3 draft (-md FILE)",
        reads_hidden_states: true,
        takes_vocab_map: false,
    }),
    n_max: model_n_max,
    table_bytes: no_tables,
};

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let DraftParts { context, fusion } = parts.draft();
    let fusion = fusion.expect("an EAGLE-3 draft is loaded with its fusion");
    Box::new(eagle3(context, fusion, parts.config.limits))
}

/// Returns a speculator that drafts with this context's EAGLE-3 draft.
pub fn eagle3<B: Backend>(
    context: Context<B>,
    fusion: impl Into<Arc<Fusion<B>>>,
    limits: DraftLimits,
) -> HiddenStateDraft<B> {
    let fusion = Some(fusion.into());
    HiddenStateDraft::new(SpecType::DraftEagle3, context, limits, 1, fusion)
}
