//! [`Reader`]: a context that reads texts when it is asked to go on with one, not before.

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId, Text, TextPart};
use crate::context::Context;
use crate::error::Error;

use super::DraftRequest;
use super::chain::{ChainConfig, draft_chain};

/// A draft context that was not asked for a draft for so many tokens is cleared and restarts at the current
/// position: evaluating the tokens it missed would cost more than they are worth.
pub(super) const IDLE_LIMIT: usize = 64;

/// A context that holds the beginning of some text in each sequence. What that has in common with the
/// text to go on with stays, so a text may become shorter, change, or begin anew at any time.
pub(super) struct Reader<B: Backend> {
    pub(super) context: Context<B>,
    held: Vec<Held>,
}

/// What the context holds of a sequence.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Position of the first token.
    at: usize,
    text: Text,
    /// Times that the text went on since it was last read.
    n_unread: usize,
}

impl Held {
    /// Tokens of the text that it holds, or has forgotten for good.
    fn n_held(&self, text: &Text) -> usize {
        match text.len() >= self.at {
            true => {
                let text = text.part(self.at..text.len());
                self.at + self.text.whole().n_shared(text)
            }
            false => 0,
        }
    }

    /// Whether the text went on token by token, and nobody asked.
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

    /// The text of a sequence was cut to its first `len` tokens, or starts anew.
    pub(super) fn cut(&mut self, seq: SeqId, len: usize) {
        if len < self.held[seq].at {
            self.context.restart(seq, 0);
            self.held[seq] = Held::default();
        }
    }

    /// A sequence becomes a copy of another.
    pub(super) fn share(&mut self, from: SeqId, to: SeqId) {
        self.context.share(from, to, self.context.len(from));
        self.held[to] = self.held[from].clone();
    }

    /// The text of a sequence has gone on. What there is much of, as in a prompt, is read at once.
    pub(super) fn went_on(&mut self, seq: SeqId, text: &Text) {
        self.held[seq].n_unread += 1;
        let n_lacking = text.len().saturating_sub(self.held[seq].n_held(text));
        if n_lacking > IDLE_LIMIT && !self.held[seq].is_silent(n_lacking) {
            self.catch_up(seq, text);
        }
    }

    /// Reads a text to its end, so that a draft need not.
    pub(super) fn catch_up(&mut self, seq: SeqId, text: &Text) {
        self.meet(seq, text);
        self.read(vec![(seq, text)], 0);
    }

    /// Goes back to what the context has in common with a text; returns the number of tokens.
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

    /// Reads what it lacks of texts, all together, but for the last `n_left` tokens of all.
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

    /// Fills in the drafts behind texts, in the same order, which end in front of the newest tokens.
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
            // A draft that was dropped was run as well.
            let n_held = held.at + held.text.len();
            self.context.truncate(request.seq, n_held as u32);
        }
        Ok(())
    }
}
