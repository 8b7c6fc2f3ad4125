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
use crate::speculate::spec::{DraftKind, Parts, Spec};

pub(super) const SPEC: Spec = Spec::with_features(
    "draft-eagle3",
    DraftKind::Eagle3,
    "an EAGLE-3 draft (-md FILE)",
);

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let (context, fusion) = parts.fused();
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
