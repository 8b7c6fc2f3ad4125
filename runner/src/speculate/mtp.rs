//! `draft-mtp`: the target's MTP head, chained to any depth.
//!
//! The head pairs the token at position `p` with the trunk's hidden state of `p - 1`, after the
//! final norm; before position 0 that state is zero. So the pair of a batch's first row is
//! completed by the state that was last before it: one pending row a sequence.

use kernels::backend::Backend;

use crate::batch::{Batch, SeqId};
use crate::context::Context;
use crate::error::Error;

use super::chain::{ChainConfig, draft_chain};
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// An MTP head kept in step with its trunk.
pub struct Mtp<B: Backend> {
    context: Context<B>,
    chain: ChainConfig,
    /// The trunk's hidden state of each sequence's last position, (n_seq, n_embd).
    pending: B::Buffer,
    /// The trunk's hidden states of the last batch, (n_batch, n_embd).
    seen: B::Buffer,
    /// The rows of `seen` that belong to each sequence.
    seen_rows: Vec<std::ops::Range<usize>>,
    /// Hidden states that go into the head, (n_batch, n_embd).
    input: B::Buffer,
    zero: Vec<f32>,
}

impl<B: Backend> Mtp<B> {
    /// Drafts with the head of this context.
    pub fn new(context: Context<B>, chain: ChainConfig) -> Mtp<B> {
        let n_embd = context.model().hparams.n_embd as usize;
        let config = *context.config();
        let buffer = |rows: usize| context.backend().buffer(rows * n_embd);
        let pending = buffer(config.cache.n_seq);
        let seen = buffer(config.n_batch);
        let input = buffer(config.n_batch);
        let seen_rows = vec![0..0; config.cache.n_seq];
        Mtp {
            context,
            chain,
            pending,
            seen,
            seen_rows,
            input,
            zero: vec![0.0; n_embd],
        }
    }
}

impl<B: Backend> Speculator<B> for Mtp<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftMtp
    }

    fn n_max(&self) -> usize {
        self.chain.n_max
    }

    fn begin(&mut self, _seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let width = self.zero.len();
        for run in pass.batch.runs() {
            let (first, n) = (run.rows.start, run.rows.len());
            let position = pass.batch.positions[first];
            self.context.truncate(run.seq, position)?;
            if position == 0 {
                self.context
                    .backend()
                    .upload(&self.zero, &mut self.pending, run.seq * width);
            }
            let backend = self.context.backend();
            backend.copy_rows(&self.pending, run.seq, &mut self.input, first, width, 1);
            backend.copy_rows(pass.hidden, first, &mut self.input, first + 1, width, n - 1);
            backend.copy_rows(pass.hidden, first, &mut self.seen, first, width, n);
            backend.copy_rows(
                pass.hidden,
                first + n - 1,
                &mut self.pending,
                run.seq,
                width,
                1,
            );
            self.seen_rows[run.seq] = run.rows;
        }
        let batch = Batch {
            outputs: Vec::new(),
            ..pass.batch.clone()
        };
        self.context.forward(&batch, Some(&self.input));
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let seqs: Vec<usize> = requests.iter().map(|request| request.seq).collect();
        let width = self.zero.len();
        self.context
            .backend()
            .gather_rows(&self.pending, width, &seqs, &mut self.input);
        draft_chain(
            &mut self.context,
            &self.chain,
            requests,
            Some(&mut self.input),
        )
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        let Committed {
            seq,
            n_accepted,
            len,
            ..
        } = committed;
        // Row 0 of a check is the token before the draft.
        let row = self.seen_rows[seq].start + n_accepted;
        debug_assert!(
            self.seen_rows[seq].contains(&row),
            "accepted rows were in the batch"
        );
        let backend = self.context.backend();
        backend.copy_rows(&self.seen, row, &mut self.pending, seq, self.zero.len(), 1);
        self.context.truncate(seq, len)
    }
}
