//! [`Follower`]: a draft that feeds on the target's hidden states, and what it keeps of them.

use std::ops::Range;

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::context::Context;
use crate::error::Error;

use super::chain::{ChainConfig, draft_chain};
use super::{Committed, DraftRequest};

/// A context whose tokens each come with a hidden state of the position before: the newest one of
/// a sequence has to wait for its token.
pub(super) struct Follower<B: Backend> {
    pub(super) context: Context<B>,
    pub(super) chain: ChainConfig,
    /// The hidden state of each sequence's last position, (n_seq, n_embd).
    pub(super) pending: B::Buffer,
    /// The hidden states of the target's last batch, (n_batch, n_embd).
    pub(super) seen: B::Buffer,
    /// The rows of `seen` that belong to each sequence.
    pub(super) seen_rows: Vec<Range<usize>>,
    /// What goes into the context beside the tokens, (n_batch, n_embd).
    pub(super) input: B::Buffer,
    /// Elements of a hidden state.
    pub(super) n_embd: usize,
}

impl<B: Backend> Follower<B> {
    pub(super) fn new(context: Context<B>, chain: ChainConfig) -> Follower<B> {
        let n_embd = context.model().hparams.n_embd as usize;
        let config = *context.config();
        let buffer = |rows: usize| context.backend().buffer(rows * n_embd);
        Follower {
            pending: buffer(config.cache.n_seq),
            seen: buffer(config.n_batch),
            seen_rows: vec![0..0; config.cache.n_seq],
            input: buffer(config.n_batch),
            context,
            chain,
            n_embd,
        }
    }

    /// Fills in the drafts, from the pending states on.
    pub(super) fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let seqs: Vec<SeqId> = requests.iter().map(|request| request.seq).collect();
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

    /// Makes the state of the last accepted position the pending one, behind `len` positions.
    pub(super) fn accept(&mut self, committed: Committed, len: u32) -> Result<(), Error> {
        let seq = committed.seq;
        // Row 0 of a check is the token before the draft.
        let row = self.seen_rows[seq].start + committed.n_accepted;
        debug_assert!(
            self.seen_rows[seq].contains(&row),
            "accepted rows were in the batch"
        );
        let backend = self.context.backend();
        backend.copy_rows(&self.seen, row, &mut self.pending, seq, self.n_embd, 1);
        self.context.truncate(seq, len)
    }
}
