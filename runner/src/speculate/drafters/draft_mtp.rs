//! `draft-mtp`: the target's MTP head, applied repeatedly to any depth.
//!
//! The head pairs the token at position `p` with the target's hidden state of `p - 1`, after the
//! final norm; before position 0 that state is zero. The first row of a batch therefore uses the
//! last state before the batch: each sequence has one pending row.

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::context::Context;
use crate::error::Error;

use super::SpecType;
use crate::speculate::hidden_state_draft::HiddenStateDraft;
use crate::speculate::model_draft::DraftLimits;
use crate::speculate::spec::{DraftKind, ModelSpec, Parts, Spec, model_n_max, no_tables};
use crate::speculate::{Committed, DraftRequest, Speculator, TargetPass};

pub(super) const SPEC: Spec = Spec {
    name: "draft-mtp",
    // Published rates of trained heads are 0.6 to 0.9. A head that is zeroed, shuffled or given the
    // wrong hidden state agrees with its target only on the most common tokens.
    acceptance_floor: Some(0.4),
    model: Some(ModelSpec {
        kind: DraftKind::Mtp,
        other_file: None,
        in_target: true,
        missing: "an MTP head (-md FILE)",
        reads_hidden_states: true,
        takes_vocab_map: false,
    }),
    n_max: model_n_max,
    table_bytes: no_tables,
};

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    Box::new(Mtp::new(parts.context(), parts.config.limits))
}

/// An MTP head kept in sync with its target.
pub struct Mtp<B: Backend> {
    head: HiddenStateDraft<B>,
}

impl<B: Backend> Mtp<B> {
    /// Creates a speculator that drafts with this context's head.
    pub fn new(context: Context<B>, limits: DraftLimits) -> Mtp<B> {
        Mtp {
            head: HiddenStateDraft::new(context, limits, 0, None),
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
