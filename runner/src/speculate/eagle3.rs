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

use super::chain::ChainConfig;
use super::hidden_state_draft::HiddenStateDraft;
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// An EAGLE-3 draft kept in sync with its target.
pub struct Eagle3<B: Backend> {
    draft: HiddenStateDraft<B>,
}

impl<B: Backend> Eagle3<B> {
    /// Creates a speculator that drafts with this context's model.
    pub fn new(
        context: Context<B>,
        fusion: impl Into<Arc<Fusion<B>>>,
        chain: ChainConfig,
    ) -> Eagle3<B> {
        Eagle3 {
            draft: HiddenStateDraft::new(context, chain, 1, Some(fusion.into())),
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
