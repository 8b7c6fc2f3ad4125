//! `draft-mtp`: the target's MTP head, chained to any depth.
//!
//! The head pairs the token at position `p` with the trunk's hidden state of `p - 1`, after the
//! final norm; before position 0 that state is zero. So the pair of a batch's first row is
//! completed by the state that was last before it: one pending row a sequence.

use kernels::backend::Backend;

use crate::batch::{Batch, SeqId};
use crate::context::Context;
use crate::error::Error;

use super::chain::ChainConfig;
use super::follower::Follower;
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// An MTP head kept in step with its trunk.
pub struct Mtp<B: Backend> {
    head: Follower<B>,
    zero: Vec<f32>,
}

impl<B: Backend> Mtp<B> {
    /// Drafts with the head of this context.
    pub fn new(context: Context<B>, chain: ChainConfig) -> Mtp<B> {
        let head = Follower::new(context, chain);
        Mtp {
            zero: vec![0.0; head.n_embd],
            head,
        }
    }
}

impl<B: Backend> Speculator<B> for Mtp<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftMtp
    }

    fn n_max(&self) -> usize {
        self.head.chain.n_max
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
        } = &mut self.head;
        let width = *width;
        for run in pass.batch.runs() {
            let (first, n) = (run.rows.start, run.rows.len());
            let position = pass.batch.positions[first];
            context.truncate(run.seq, position)?;
            let backend = context.backend();
            if position == 0 {
                backend.upload(&self.zero, pending, run.seq * width);
            }
            backend.copy_rows(pending, run.seq, input, first, width, 1);
            backend.copy_rows(pass.hidden, first, input, first + 1, width, n - 1);
            backend.copy_rows(pass.hidden, first, seen, first, width, n);
            backend.copy_rows(pass.hidden, first + n - 1, pending, run.seq, width, 1);
            seen_rows[run.seq] = run.rows;
        }
        let batch = Batch {
            outputs: Vec::new(),
            ..pass.batch.clone()
        };
        context.forward(&batch, Some(input));
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        self.head.draft(requests)
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        let len = committed.len;
        self.head.accept(committed, len)
    }
}
