//! `draft-eagle3`: a draft that sees three hidden states of its target.
//!
//! The draft pairs the token at position `p + 1` with the target's fused features of `p`, at
//! position `p`. So the newest position has to wait for its token: one pending row a sequence,
//! which the first token of the next batch completes.

use std::sync::Arc;

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId};
use crate::context::Context;
use crate::error::Error;
use crate::model::Fusion;

use super::chain::ChainConfig;
use super::follower::Follower;
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// An EAGLE-3 draft kept in step with its target.
pub struct Eagle3<B: Backend> {
    /// What it follows are the target's fused features.
    draft: Follower<B>,
    fusion: Arc<Fusion<B>>,
    scratch: B::Buffer,
}

impl<B: Backend> Eagle3<B> {
    /// Drafts with the draft of this context.
    pub fn new(
        context: Context<B>,
        fusion: impl Into<Arc<Fusion<B>>>,
        chain: ChainConfig,
    ) -> Eagle3<B> {
        let fusion = fusion.into();
        let n_batch = context.config().n_batch;
        Eagle3 {
            scratch: fusion.scratch(context.backend(), n_batch),
            draft: Follower::new(context, chain),
            fusion,
        }
    }
}

impl<B: Backend> Speculator<B> for Eagle3<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftEagle3
    }

    fn n_max(&self) -> usize {
        self.draft.chain.n_max
    }

    fn begin(&mut self, _seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let Follower {
            context,
            pending,
            seen,
            seen_rows,
            input,
            n_embd: width,
            ..
        } = &mut self.draft;
        let (n, width) = (pass.batch.len(), *width);
        let scratch = &mut self.scratch;
        self.fusion
            .forward(context.backend(), pass.features, n, scratch, seen);
        let mut batch = Batch::default();
        for run in pass.batch.runs() {
            let (first, last) = (run.rows.start, run.rows.end - 1);
            let position = pass.batch.positions[first];
            // The first token of a text completes nothing: no features come before it.
            let (start, completed) = match position {
                0 => (0, first + 1),
                _ => (position - 1, first),
            };
            context.truncate(run.seq, start)?;
            let tokens = &pass.batch.tokens[completed..=last];
            let mut at = batch.push(run.seq, start, tokens, Outputs::None);
            let backend = context.backend();
            if position > 0 {
                backend.copy_rows(pending, run.seq, input, at, width, 1);
                at += 1;
            }
            backend.copy_rows(seen, first, input, at, width, last - first);
            backend.copy_rows(seen, last, pending, run.seq, width, 1);
            seen_rows[run.seq] = run.rows;
        }
        if !batch.is_empty() {
            context.forward(&batch, Some(input));
        }
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        self.draft.draft(requests)
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        // The newest position is the pending one.
        let len = committed.len - 1;
        self.draft.accept(committed, len)
    }
}
