//! `draft-simple`: a small model of the same vocabulary, with caches of its own.

use kernels::backend::Backend;

use crate::batch::{Batch, SeqId};
use crate::context::Context;
use crate::error::Error;

use super::chain::draft_chain;
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// A draft model kept in step with the target.
pub struct DraftModel<B: Backend> {
    context: Context<B>,
    n_max: usize,
}

impl<B: Backend> DraftModel<B> {
    /// Drafts up to `n_max` tokens with the model of this context.
    pub fn new(context: Context<B>, n_max: usize) -> DraftModel<B> {
        DraftModel { context, n_max }
    }
}

impl<B: Backend> Speculator<B> for DraftModel<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        self.n_max
    }

    fn begin(&mut self, _seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        for run in pass.batch.runs() {
            self.context
                .truncate(run.seq, pass.batch.positions[run.rows.start])?;
        }
        let batch = Batch {
            outputs: Vec::new(),
            ..pass.batch.clone()
        };
        self.context.forward(&batch, None);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        requests
            .iter_mut()
            .for_each(|request| request.n_max = request.n_max.min(self.n_max));
        draft_chain(&mut self.context, requests, None)
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.context.truncate(committed.seq, committed.len)
    }
}
