//! `draft-eagle3`: a draft that reads three hidden states of its target.
//!
//! The draft pairs the token at position `p + 1` with the target's fused features of `p`, at
//! position `p`. The newest position therefore has to wait for its token: each sequence has one
//! pending row, which the first token of the next batch completes.

use std::sync::Arc;

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::context::Context;
use crate::error::Error;
use crate::model::Fusion;

use super::SpecType;
use crate::speculate::hidden_state_draft::HiddenStateDraft;
use crate::speculate::model_draft::DraftLimits;
use crate::speculate::spec::{
    DraftKind, DraftParts, ModelSpec, Parts, Spec, model_n_max, no_tables,
};
use crate::speculate::{Committed, DraftRequest, Speculator, TargetPass};

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
    Box::new(Eagle3::new(context, fusion, parts.config.limits))
}

/// An EAGLE-3 draft kept in sync with its target.
pub struct Eagle3<B: Backend> {
    draft: HiddenStateDraft<B>,
}

impl<B: Backend> Eagle3<B> {
    /// Creates a speculator that drafts with this context's model.
    pub fn new(
        context: Context<B>,
        fusion: impl Into<Arc<Fusion<B>>>,
        limits: DraftLimits,
    ) -> Eagle3<B> {
        Eagle3 {
            draft: HiddenStateDraft::new(context, limits, 1, Some(fusion.into())),
        }
    }
}

impl<B: Backend> Speculator<B> for Eagle3<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftEagle3
    }

    fn n_max(&self) -> usize {
        self.draft.n_max()
    }

    fn begin(&mut self, seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        self.draft.begin(seq);
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        self.draft.process(pass.batch, pass.features);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        self.draft.draft(requests)
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.draft.accept(committed.seq, committed.len);
        Ok(())
    }

    fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> Result<u32, Error> {
        Ok(self.draft.share(from, to, len))
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        Ok(self.draft.truncate(seq, len))
    }
}
