//! `draft-simple`: a small model of the same vocabulary, with caches of its own.

use kernels::backend::Backend;

use crate::batch::{Batch, SeqId};
use crate::context::Context;
use crate::error::Error;

use super::chain::{ChainConfig, draft_chain};
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// A draft model kept in step with the target.
pub struct DraftModel<B: Backend> {
    context: Context<B>,
    chain: ChainConfig,
}

impl<B: Backend> DraftModel<B> {
    /// Drafts with the model of this context.
    pub fn new(context: Context<B>, chain: ChainConfig) -> DraftModel<B> {
        DraftModel { context, chain }
    }
}

impl<B: Backend> Speculator<B> for DraftModel<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        self.chain.n_max
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
        draft_chain(&mut self.context, &self.chain, requests, None)
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.context.truncate(committed.seq, committed.len)
    }
}
