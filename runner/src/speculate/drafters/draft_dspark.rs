//! `draft-dspark`: a draft that proposes a block of tokens in one pass: tokens one after another, with a bias
//! that depends on the token before.

use std::sync::Arc;

use kernels::backend::Backend;

use crate::context::Context;
use crate::model::Fusion;

use super::SpecType;
use crate::speculate::Speculator;
use crate::speculate::block_draft::BlockDrafter;
use crate::speculate::model_draft::DraftLimits;
use crate::speculate::spec::{
    DraftKind, DraftParts, ModelSpec, Parts, Spec, model_n_max, no_tables,
};

pub(super) const SPEC: Spec = Spec {
    name: "draft-dspark",
    // As for EAGLE-3 drafts.
    acceptance_floor: Some(0.3),
    model: Some(ModelSpec {
        kind: DraftKind::Dspark,
        other_file: None,
        in_target: false,
        missing: "a DSpark draft (-md FILE)",
        reads_hidden_states: true,
        takes_vocab_map: false,
    }),
    n_max: model_n_max,
    table_bytes: no_tables,
};

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let DraftParts { context, fusion } = parts.draft();
    let fusion = fusion.expect("a block draft is loaded with its fusion");
    Box::new(dspark(context, fusion, parts.config.limits))
}

/// Returns a speculator that drafts with this context's block draft.
pub fn dspark<B: Backend>(
    context: Context<B>,
    fusion: impl Into<Arc<Fusion<B>>>,
    limits: DraftLimits,
) -> BlockDrafter<B> {
    BlockDrafter::new(SpecType::DraftDspark, context, fusion.into(), limits)
}
