//! `draft-simple`: a small model with the same vocabulary and its own caches.

mod translated;

use kernels::backend::Backend;

use crate::batch::{SeqId, Text};
use crate::context::Context;
use crate::error::Error;

use super::SpecType;
use crate::speculate::lazy_draft_context::LazyDraftContext;
use crate::speculate::model_draft::DraftLimits;
use crate::speculate::spec::{DraftKind, ModelSpec, Parts, Spec, model_n_max, no_tables};
use crate::speculate::{Committed, DraftRequest, Speculator, TargetPass};

pub use translated::TranslatedDraft;

pub(super) const SPEC: Spec = Spec {
    name: "draft-simple",
    // Small models of the target's family are slightly below MTP heads, for any text.
    acceptance_floor: Some(0.3),
    model: Some(ModelSpec {
        kind: DraftKind::Model,
        // A draft model may have an MTP head too.
        other_file: Some(DraftKind::Mtp),
        in_target: false,
        missing: "a draft model (-md FILE)",
        reads_hidden_states: false,
        takes_vocab_map: true,
    }),
    n_max: model_n_max,
    table_bytes: no_tables,
};

pub(super) fn build<B: Backend>(mut parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
    let (context, limits) = (parts.context(), parts.config.limits);
    match parts.vocab_map {
        None => Box::new(DraftModel::new(context, limits)),
        Some(map) => Box::new(TranslatedDraft::new(context, map.clone(), limits)),
    }
}

/// A draft model that evaluates the target's text.
pub struct DraftModel<B: Backend> {
    draft: LazyDraftContext<B>,
    limits: DraftLimits,
    texts: Vec<Text>,
}

impl<B: Backend> DraftModel<B> {
    /// Creates a speculator that drafts with this context's model.
    pub fn new(context: Context<B>, limits: DraftLimits) -> DraftModel<B> {
        DraftModel {
            texts: vec![Text::default(); context.config().cache.n_seq],
            draft: LazyDraftContext::new(context),
            limits,
        }
    }
}

impl<B: Backend> Speculator<B> for DraftModel<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        self.limits.n_max
    }

    fn begin(&mut self, seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        self.draft.catch_up(seq, &self.texts[seq]);
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        for run in pass.batch.runs() {
            let text = &mut self.texts[run.seq];
            let position = pass.batch.positions[run.rows.start] as usize;
            text.truncate(position);
            self.draft.truncate(run.seq, position);
            text.extend(pass.batch.slice(run.rows));
            self.draft.extend(run.seq, text);
        }
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let texts: Vec<&Text> = requests.iter().map(|r| &self.texts[r.seq]).collect();
        self.draft.draft(&self.limits, requests, &texts)
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.texts[committed.seq].truncate(committed.len as usize);
        Ok(())
    }

    fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> Result<u32, Error> {
        self.texts[to] = self.texts[from].clone();
        self.draft.share(from, to);
        self.truncate(to, len)
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        self.texts[seq].truncate(len as usize);
        self.draft.truncate(seq, len as usize);
        Ok(len)
    }
}
