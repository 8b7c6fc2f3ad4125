//! `draft-mtp`: the target's MTP head, applied repeatedly to any depth.
//!
//! The head pairs the token at position `p` with the target's hidden state of `p - 1`, after the
//! final norm; before position 0 that state is zero. The first row of a batch therefore uses the
//! last state before the batch: each sequence has one pending row.

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::context::Context;
use crate::error::Error;

use super::chain::ChainConfig;
use super::hidden_state_draft::HiddenStateDraft;
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// An MTP head kept in sync with its target.
pub struct Mtp<B: Backend> {
    head: HiddenStateDraft<B>,
}

impl<B: Backend> Mtp<B> {
    /// Creates a speculator that drafts with this context's head.
    pub fn new(context: Context<B>, chain: ChainConfig) -> Mtp<B> {
        Mtp {
            head: HiddenStateDraft::new(context, chain, 0, None),
        }
    }
}

impl<B: Backend> Speculator<B> for Mtp<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftMtp
    }

    fn n_max(&self) -> usize {
        self.head.n_max()
    }

    fn begin(&mut self, seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        self.head.begin(seq);
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        self.head.process(pass.batch, pass.hidden);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        self.head.draft(requests)
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.head.accept(committed.seq, committed.len);
        Ok(())
    }

    fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> Result<u32, Error> {
        Ok(self.head.share(from, to, len))
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        Ok(self.head.truncate(seq, len))
    }
}
