//! [`Reader`]: a draft context that evaluates a text only when a draft is requested.

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId, Text, TextPart};
use crate::context::Context;
use crate::error::Error;

use super::DraftRequest;
use super::chain::{ChainConfig, draft_chain};

/// A draft context without a request for this many tokens is cleared and restarts at the current
/// position: evaluating the missed tokens would cost more than they are worth.
pub(super) const IDLE_LIMIT: usize = 64;

/// A context that holds a prefix of a text in each sequence. The prefix shared with the text to
/// continue is kept, so a text may be truncated, changed or replaced at any time.
pub(super) struct Reader<B: Backend> {
    pub(super) context: Context<B>,
    held: Vec<Held>,
}

/// The tokens of a sequence that the context holds.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Position of the first token.
    at: usize,
    text: Text,
    /// Number of times the text grew since it was last evaluated.
    n_unread: usize,
}

impl Held {
    /// Returns the number of leading tokens of the text that are in the context, or before its
    /// first position.
    fn n_held(&self, text: &Text) -> usize {
        match text.len() >= self.at {
            true => {
                let text = text.part(self.at..text.len());
                self.at + self.text.whole().n_shared(text)
            }
            false => 0,
        }
    }

    /// True if the text grew token by token for more than [`IDLE_LIMIT`] tokens without a request
    /// for a draft.
    fn is_silent(&self, n_lacking: usize) -> bool {
        n_lacking > IDLE_LIMIT && 2 * self.n_unread > n_lacking
    }
}

impl<B: Backend> Reader<B> {
    pub(super) fn new(context: Context<B>) -> Reader<B> {
        Reader {
            held: vec![Held::default(); context.config().cache.n_seq],
            context,
        }
    }

    /// The text of a sequence was truncated to its first `len` tokens, or replaced.
    pub(super) fn cut(&mut self, seq: SeqId, len: usize) {
        if len < self.held[seq].at {
            self.context.restart(seq, 0);
            self.held[seq] = Held::default();
        }
    }

    /// Replaces a sequence by a copy of another.
    pub(super) fn share(&mut self, from: SeqId, to: SeqId) {
        self.context.share(from, to, self.context.len(from));
        self.held[to] = self.held[from].clone();
    }

    /// Notes that the text of a sequence has grown. Long additions, such as a prompt, are evaluated
    /// at once.
    pub(super) fn went_on(&mut self, seq: SeqId, text: &Text) {
        self.held[seq].n_unread += 1;
        let n_lacking = text.len().saturating_sub(self.held[seq].n_held(text));
        if n_lacking > IDLE_LIMIT && !self.held[seq].is_silent(n_lacking) {
            self.catch_up(seq, text);
        }
    }

    /// Evaluates a text to its end, so that a draft does not have to.
    pub(super) fn catch_up(&mut self, seq: SeqId, text: &Text) {
        self.meet(seq, text);
        self.read(vec![(seq, text)], 0);
    }

    /// Rolls the context back to the prefix shared with a text. Returns the number of tokens in
    /// common.
    fn meet(&mut self, seq: SeqId, text: &Text) -> usize {
        let held = &mut self.held[seq];
        let n_held = held.n_held(text);
        if held.is_silent(text.len() - n_held) {
            let at = text.len() - IDLE_LIMIT;
            self.context.restart(seq, at as u32);
            (held.at, held.text) = (at, Text::default());
            return at;
        }
        self.context.truncate(seq, n_held as u32);
        match n_held > held.at {
            true => held.text.truncate(n_held - held.at),
            false => {
                self.context.restart(seq, n_held as u32);
                (held.at, held.text) = (n_held, Text::default());
            }
        }
        n_held
    }

    /// Evaluates the missing tokens of all texts in common batches, except for the last `n_left`
    /// tokens overall.
    fn read(&mut self, texts: Vec<(SeqId, &Text)>, n_left: usize) {
        let n_batch = self.context.config().n_batch;
        let lacking = |reader: &Self, (seq, text): (SeqId, &Text)| {
            text.len() - reader.context.len(seq) as usize
        };
        loop {
            let n: usize = texts.iter().map(|&text| lacking(self, text)).sum();
            let mut left = n.saturating_sub(n_left).min(n_batch);
            let mut batch = Batch::default();
            for &(seq, text) in &texts {
                let start = self.context.len(seq) as usize;
                let n = (text.len() - start).min(left);
                left -= n;
                let part = text.part(start..start + n);
                batch.push_part(seq, start as u32, part, Outputs::None);
                self.held[seq].text.extend(part);
                self.held[seq].n_unread = 0;
            }
            if batch.is_empty() {
                return;
            }
            self.context.forward(&batch, None);
        }
    }

    /// Fills in the drafts that follow the texts, one text per request. Each text ends before the
    /// newest token of its request.
    pub(super) fn draft(
        &mut self,
        chain: &ChainConfig,
        requests: &mut [DraftRequest<'_>],
        texts: &[&Text],
    ) -> Result<(), Error> {
        let seqs: Vec<SeqId> = requests.iter().map(|request| request.seq).collect();
        for (&seq, text) in seqs.iter().zip(texts) {
            self.meet(seq, text);
        }
        let n_first = self.context.config().n_batch - requests.len();
        let pairs = seqs.iter().copied().zip(texts.iter().copied());
        self.read(pairs.collect(), n_first);
        let leads = seqs.iter().zip(texts).map(|(&seq, text)| {
            let held = self.context.len(seq) as usize;
            text.part(held..text.len())
        });
        let leads: Vec<TextPart<'_>> = leads.collect();
        draft_chain(&mut self.context, chain, requests, &leads, None)?;
        for (request, lead) in requests.iter().zip(leads) {
            let held = &mut self.held[request.seq];
            held.n_unread = 0;
            held.text.extend(lead);
            held.text.tokens.push(request.last);
            let n_run = self.context.len(request.seq) as usize - held.at;
            let drafted = request.draft.iter().copied();
            let n_known = n_run - held.text.len();
            held.text.tokens.extend(drafted.take(n_known));
            // A draft that was dropped was evaluated as well.
            let n_held = held.at + held.text.len();
            self.context.truncate(request.seq, n_held as u32);
        }
        Ok(())
    }
}
