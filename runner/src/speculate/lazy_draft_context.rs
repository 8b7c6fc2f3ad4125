//! [`LazyDraftContext`]: a draft context that evaluates a text only when a draft is requested.

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId, Text, TextSlice};
use crate::context::Context;
use crate::error::Error;

use super::DraftRequest;
use super::model_draft::{DraftLimits, draft_tokens};

/// A draft context without a request for this many tokens is cleared and restarts at the current
/// position: evaluating the missed tokens would cost more than they are worth.
pub(super) const IDLE_LIMIT: usize = 64;

/// A context that holds a prefix of a text in each sequence. The prefix shared with the text to
/// continue is kept, so a text may be truncated, changed or replaced at any time.
pub(super) struct LazyDraftContext<B: Backend> {
    pub(super) context: Context<B>,
    evaluated: Vec<EvaluatedText>,
}

/// The tokens of a sequence that the context holds.
#[derive(Clone, Debug, Default)]
struct EvaluatedText {
    /// Position of the first token.
    at: usize,
    text: Text,
    /// Number of times the text grew since it was last evaluated.
    n_extensions: usize,
}

impl EvaluatedText {
    /// Returns the number of leading tokens of the text that are in the context, or before its
    /// first position.
    fn n_evaluated(&self, text: &Text) -> usize {
        match text.len() >= self.at {
            true => {
                let text = text.slice(self.at..text.len());
                self.at + self.text.whole().n_shared(text)
            }
            false => 0,
        }
    }

    /// True if the text grew token by token for more than [`IDLE_LIMIT`] tokens without a request
    /// for a draft.
    fn is_idle(&self, n_missing: usize) -> bool {
        n_missing > IDLE_LIMIT && 2 * self.n_extensions > n_missing
    }
}

impl<B: Backend> LazyDraftContext<B> {
    pub(super) fn new(context: Context<B>) -> LazyDraftContext<B> {
        LazyDraftContext {
            evaluated: vec![EvaluatedText::default(); context.config().cache.n_seq],
            context,
        }
    }

    /// The text of a sequence was truncated to its first `len` tokens, or replaced.
    pub(super) fn truncate(&mut self, seq: SeqId, len: usize) {
        if len < self.evaluated[seq].at {
            self.context.restart(seq, 0);
            self.evaluated[seq] = EvaluatedText::default();
        }
    }

    /// Replaces a sequence by a copy of another.
    pub(super) fn share(&mut self, from: SeqId, to: SeqId) {
        self.context.share(from, to, self.context.len(from));
        self.evaluated[to] = self.evaluated[from].clone();
    }

    /// The text of a sequence was extended. Long additions, such as a prompt, are evaluated
    /// at once.
    pub(super) fn extend(&mut self, seq: SeqId, text: &Text) {
        self.evaluated[seq].n_extensions += 1;
        let n_missing = text
            .len()
            .saturating_sub(self.evaluated[seq].n_evaluated(text));
        if n_missing > IDLE_LIMIT && !self.evaluated[seq].is_idle(n_missing) {
            self.catch_up(seq, text);
        }
    }

    /// Evaluates a text to its end, so that a draft does not have to.
    pub(super) fn catch_up(&mut self, seq: SeqId, text: &Text) {
        // Extensions of the text that the sequence had before do not make this one idle.
        self.evaluated[seq].n_extensions = 0;
        self.roll_back_to_prefix(seq, text);
        self.evaluate(vec![(seq, text)], 0);
    }

    /// Rolls the context back to the prefix shared with a text. Returns the number of tokens in
    /// common.
    fn roll_back_to_prefix(&mut self, seq: SeqId, text: &Text) -> usize {
        let evaluated = &mut self.evaluated[seq];
        let n_evaluated = evaluated.n_evaluated(text);
        if evaluated.is_idle(text.len() - n_evaluated) {
            let at = text.len() - IDLE_LIMIT;
            self.context.restart(seq, at as u32);
            (evaluated.at, evaluated.text) = (at, Text::default());
            return at;
        }
        self.context.truncate(seq, n_evaluated as u32);
        match n_evaluated > evaluated.at {
            true => evaluated.text.truncate(n_evaluated - evaluated.at),
            false => {
                self.context.restart(seq, n_evaluated as u32);
                (evaluated.at, evaluated.text) = (n_evaluated, Text::default());
            }
        }
        n_evaluated
    }

    /// Evaluates the missing tokens of all texts in common batches, except for the last `n_left`
    /// tokens overall.
    fn evaluate(&mut self, texts: Vec<(SeqId, &Text)>, n_left: usize) {
        let n_batch = self.context.config().n_batch;
        let missing =
            |this: &Self, (seq, text): (SeqId, &Text)| text.len() - this.context.len(seq) as usize;
        loop {
            let n: usize = texts.iter().map(|&text| missing(self, text)).sum();
            let mut left = n.saturating_sub(n_left).min(n_batch);
            let mut batch = Batch::default();
            for &(seq, text) in &texts {
                let start = self.context.len(seq) as usize;
                let n = (text.len() - start).min(left);
                left -= n;
                let slice = text.slice(start..start + n);
                batch.push_slice(seq, start as u32, slice, Outputs::None);
                self.evaluated[seq].text.extend(slice);
                self.evaluated[seq].n_extensions = 0;
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
        limits: &DraftLimits,
        requests: &mut [DraftRequest<'_>],
        texts: &[&Text],
    ) -> Result<(), Error> {
        let seqs: Vec<SeqId> = requests.iter().map(|request| request.seq).collect();
        for (&seq, text) in seqs.iter().zip(texts) {
            self.roll_back_to_prefix(seq, text);
        }
        let n_first = self.context.config().n_batch - requests.len();
        let pairs = seqs.iter().copied().zip(texts.iter().copied());
        self.evaluate(pairs.collect(), n_first);
        let leads = seqs.iter().zip(texts).map(|(&seq, text)| {
            let evaluated = self.context.len(seq) as usize;
            text.slice(evaluated..text.len())
        });
        let leads: Vec<TextSlice<'_>> = leads.collect();
        draft_tokens(&mut self.context, limits, requests, &leads, None)?;
        for (request, lead) in requests.iter().zip(leads) {
            let evaluated = &mut self.evaluated[request.seq];
            evaluated.n_extensions = 0;
            evaluated.text.extend(lead);
            evaluated.text.tokens.push(request.last);
            let n_run = self.context.len(request.seq) as usize - evaluated.at;
            let drafted = request.draft.iter().copied();
            let n_known = n_run - evaluated.text.len();
            evaluated.text.tokens.extend(drafted.take(n_known));
            // A draft that was dropped was evaluated as well.
            let n_evaluated = evaluated.at + evaluated.text.len();
            self.context.truncate(request.seq, n_evaluated as u32);
        }
        Ok(())
    }
}
