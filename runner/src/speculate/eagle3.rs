//! `draft-eagle3`: a draft that sees three hidden states of its target.
//!
//! The draft pairs the token at position `p + 1` with the target's fused features of `p`, at
//! position `p`. So the newest position has to wait for its token: one pending row a sequence,
//! which the first token of the next batch completes.

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId};
use crate::context::Context;
use crate::error::Error;
use crate::model::Fusion;

use super::chain::{ChainConfig, draft_chain};
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// An EAGLE-3 draft kept in step with its target.
pub struct Eagle3<B: Backend> {
    context: Context<B>,
    fusion: Fusion<B>,
    chain: ChainConfig,
    /// The target's fused features of each sequence's last position, (n_seq, n_embd).
    pending: B::Buffer,
    /// The target's fused features of the last batch, (n_batch, n_embd).
    seen: B::Buffer,
    /// The rows of `seen` that belong to each sequence.
    seen_rows: Vec<std::ops::Range<usize>>,
    /// What goes into the draft beside the tokens, (n_batch, n_embd).
    input: B::Buffer,
    scratch: B::Buffer,
    n_embd: usize,
}

impl<B: Backend> Eagle3<B> {
    /// Drafts with the draft of this context.
    pub fn new(context: Context<B>, fusion: Fusion<B>, chain: ChainConfig) -> Eagle3<B> {
        let n_embd = context.model().hparams.n_embd as usize;
        let config = *context.config();
        let buffer = |rows: usize| context.backend().buffer(rows * n_embd);
        Eagle3 {
            pending: buffer(config.cache.n_seq),
            seen: buffer(config.n_batch),
            seen_rows: vec![0..0; config.cache.n_seq],
            input: buffer(config.n_batch),
            scratch: fusion.scratch(context.backend(), config.n_batch),
            context,
            fusion,
            chain,
            n_embd,
        }
    }
}

impl<B: Backend> Speculator<B> for Eagle3<B> {
    fn kind(&self) -> SpecType {
        SpecType::DraftEagle3
    }

    fn n_max(&self) -> usize {
        self.chain.n_max
    }

    fn begin(&mut self, _seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let (n, width) = (pass.batch.len(), self.n_embd);
        let backend = self.context.backend();
        let Eagle3 { scratch, seen, .. } = self;
        self.fusion
            .forward(backend, pass.features, n, scratch, seen);
        let mut batch = Batch::default();
        for run in pass.batch.runs() {
            let (first, last) = (run.rows.start, run.rows.end - 1);
            let position = pass.batch.positions[first];
            // The first token of a text completes nothing: no features come before it.
            let (start, completed) = match position {
                0 => (0, first + 1),
                _ => (position - 1, first),
            };
            self.context.truncate(run.seq, start)?;
            let tokens = &pass.batch.tokens[completed..=last];
            let mut at = batch.push(run.seq, start, tokens, Outputs::None);
            let backend = self.context.backend();
            if position > 0 {
                backend.copy_rows(&self.pending, run.seq, &mut self.input, at, width, 1);
                at += 1;
            }
            backend.copy_rows(&self.seen, first, &mut self.input, at, width, last - first);
            backend.copy_rows(&self.seen, last, &mut self.pending, run.seq, width, 1);
            self.seen_rows[run.seq] = run.rows;
        }
        if !batch.is_empty() {
            self.context.forward(&batch, Some(&self.input));
        }
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let seqs: Vec<usize> = requests.iter().map(|request| request.seq).collect();
        self.context
            .backend()
            .gather_rows(&self.pending, self.n_embd, &seqs, &mut self.input);
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
        backend.copy_rows(&self.seen, row, &mut self.pending, seq, self.n_embd, 1);
        // The newest position is the pending one.
        self.context.truncate(seq, len - 1)
    }
}
