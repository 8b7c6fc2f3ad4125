//! [`HiddenStateDraft`]: the draft context of a drafter that reads the target's hidden states.
//!
//! Each token of this context is evaluated together with the target's hidden state of the position before
//! it. Tokens that the target has run stay *pending* here until a draft of their sequence is requested, and
//! are then evaluated in the first step of that draft. Two rules follow:
//!
//! - Rejected tokens never enter the context. The tokens of a target pass stay pending until the pass is
//!   verified, so the context is only brought up to date between passes, never while one is processed.
//! - A sequence's drafts depend on that sequence alone. When pending tokens are evaluated depends on the
//!   other sequences, but the result does not (passes are batch-invariant), and what a sequence drops
//!   (see [`IDLE_LIMIT`]) is decided by its own requests alone.

use std::sync::Arc;

use kernels::backend::Backend;
use schemas::arch::Hparams;

use crate::batch::{Batch, Outputs, Run, SeqId, Text, TextSlice};
use crate::context::{Context, ContextConfig};
use crate::error::Error;
use crate::memory::Memory;
use crate::model::Fusion;

use super::hidden_rows::HiddenRows;
use super::lazy_draft_context::IDLE_LIMIT;
use super::model_draft::{DraftLimits, draft_tokens, take_tokens};
use super::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// Every 64th state is persistent, so that a text can be rolled back to it.
const MARK_EVERY: usize = 64;

/// A draft context that follows the target's context.
pub struct HiddenStateDraft<B: Backend> {
    kind: SpecType,
    context: Context<B>,
    limits: DraftLimits,
    /// Position of a token in the text minus its position in this context: 0 or 1.
    lead: u32,
    progress: Vec<Progress>,
    states: States<B>,
    /// Turns the target's states into inputs of the draft; `None` where the draft reads them unmodified.
    fusion: Option<Arc<Fusion<B>>>,
    zero: Vec<f32>,
}

/// The target's hidden states that a draft reads.
pub(crate) struct States<M: Memory> {
    /// Elements of a state.
    width: usize,
    /// The states paired with each sequence's pending tokens, and one more for the next token:
    /// (n_seq, n_rows, width).
    pending: M::Floats,
    n_rows: usize,
    /// Persistent states, one for every [`MARK_EVERY`] positions: (n_seq, n_marks, width).
    marks: M::Floats,
    n_marks: usize,
    /// The states that chained heads returned in the steps of a draft: (n_seq, n_heads, width).
    chain: M::Floats,
    /// Number of chained heads; 0 for other drafts.
    n_heads: usize,
    /// Inputs of one pass: (n_batch, width).
    gathered: M::Floats,
    /// The same, normalised, where the fusion normalises first: (n_batch, width).
    normed: M::Floats,
    /// Output of the fusion: (n_batch, n_embd).
    fused: M::Floats,
}

impl<M: Memory> States<M> {
    /// Allocates the states for a draft with this context configuration.
    pub(crate) fn new(memory: &M, config: &ContextConfig, draft: &Hparams) -> States<M> {
        let (n_seq, n_batch) = (config.cache.n_seq, config.n_batch);
        let n_embd = draft.n_embd as usize;
        let features = draft.features.as_ref();
        let hidden_width = draft.hidden_width() as usize;
        let width = features.map_or(hidden_width, |features| features.width() as usize);
        let n_fused = features.map_or(0, |_| n_batch);
        let n_normed = features.map_or(0, |features| match features.norm_before_fc {
            true => n_batch,
            false => 0,
        });
        let n_rows = n_batch / n_seq + 1;
        let n_marks = config.cache.n_ctx / MARK_EVERY + 1;
        let n_heads = match draft.n_mtp() {
            0 | 1 => 0,
            n => n as usize,
        };
        States {
            width,
            // Both live across passes, so a read of an unwritten state must show as NaN, as in
            // caches.
            pending: memory.persistent(n_seq * n_rows * width),
            marks: memory.persistent(n_seq * n_marks * width),
            chain: memory.persistent(n_seq * n_heads * width),
            n_heads,
            gathered: memory.scratch(n_batch * width),
            normed: memory.scratch(n_normed * width),
            fused: memory.scratch(n_fused * n_embd),
            n_rows,
            n_marks,
        }
    }
}

/// Progress of one sequence, in positions of the draft context.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// First position in the context.
    first: u32,
    /// One past the last position in the context; pending tokens start here.
    evaluated: u32,
    /// Tokens that the target has run and this context has not.
    pending: Text,
    /// Position at which the last draft, or the prompt, ended.
    requested_at: u32,
    /// Target passes since then.
    n_idle_passes: u32,
}

impl Progress {
    /// Starts at a position, with nothing before it.
    fn at(position: u32) -> Progress {
        Progress {
            first: position,
            evaluated: position,
            requested_at: position,
            ..Progress::default()
        }
    }

    /// Position of the next token.
    fn end(&self) -> u32 {
        self.evaluated + self.pending.len() as u32
    }

    /// True if the text grew token by token for [`IDLE_LIMIT`] tokens without a request for a draft.
    fn is_idle(&self) -> bool {
        let n = self.end() - self.requested_at;
        n as usize >= IDLE_LIMIT && 2 * self.n_idle_passes > n
    }

    /// Restarts the count of idle tokens.
    fn requested(&mut self) {
        (self.requested_at, self.n_idle_passes) = (self.end(), 0);
    }
}

impl<B: Backend> HiddenStateDraft<B> {
    /// Creates the draft. `lead` is 0 where a token has the same position in the text and in the context, 1
    /// where the context starts at the second token of the text.
    pub(super) fn new(
        kind: SpecType,
        context: Context<B>,
        limits: DraftLimits,
        lead: u32,
        fusion: Option<Arc<Fusion<B>>>,
    ) -> HiddenStateDraft<B> {
        let config = *context.config();
        let n_seq = config.cache.n_seq;
        let states = States::new(context.backend(), &config, &context.model().hparams);
        let mut draft = HiddenStateDraft {
            kind,
            progress: vec![Progress::default(); n_seq],
            zero: vec![0.0; states.width],
            states,
            fusion,
            context,
            limits,
            lead,
        };
        (0..n_seq).for_each(|seq| draft.restart(seq, 0));
        draft
    }

    /// Takes over the tokens of a target pass, not verified yet, and their states `hidden`, row by row.
    fn take_over(&mut self, batch: &Batch, hidden: &HiddenRows<'_, B>) {
        // All that is pending now is verified. This pass is not: nothing of it may be evaluated before
        // `accept`, so room for it is made first, for all of its sequences.
        let has_room = |run: &Run| self.fits(run.seq, run.rows.len());
        if !batch.runs().all(|run| has_room(&run)) {
            self.catch_up();
        }
        for Run { seq, mut rows } in batch.runs() {
            let position = i64::from(batch.positions[rows.start]) - i64::from(self.lead);
            let end = i64::from(self.progress[seq].end());
            if (0..=end).contains(&position) {
                // The target ran tokens again that are here already.
                rows.start = rows.end.min(rows.start + (end - position) as usize);
            } else {
                // The first token has no state before it; its own state is paired with the second.
                self.restart(seq, (position + 1) as u32);
                self.copy_state(hidden, rows.start, seq);
                rows.start += 1;
            }
            self.progress[seq].n_idle_passes += 1;
            if !rows.is_empty() {
                self.append(seq, batch.slice(rows.clone()), hidden, rows.start);
            }
        }
    }

    /// True if `n` more tokens of a sequence can be pending, or if they are a prompt that is evaluated at once
    /// and no token is pending before them.
    fn fits(&self, seq: SeqId, n: usize) -> bool {
        let n_pending = self.progress[seq].pending.len();
        n_pending == 0 || n_pending + n < self.states.n_rows
    }

    /// Clears a sequence; its next token is at position `at`.
    fn restart(&mut self, seq: SeqId, at: u32) {
        self.context.restart(seq, at);
        self.progress[seq] = Progress::at(at);
        if at == 0 {
            // The state before the first token of a text is zero.
            let to = seq * self.states.n_rows * self.states.width;
            let backend = self.context.backend();
            backend.upload(&self.zero, &mut self.states.pending, to);
        }
    }

    /// Copies a row into the state before the next token; no token may be pending.
    fn copy_state(&mut self, hidden: &HiddenRows<'_, B>, row: usize, seq: SeqId) {
        let to = seq * self.states.n_rows;
        let backend = self.context.backend();
        hidden.copy(backend, row, &mut self.states.pending, to, 1);
    }

    /// Adds tokens, whose own states are the rows of `hidden` from `first` on.
    fn append(
        &mut self,
        seq: SeqId,
        slice: TextSlice<'_>,
        hidden: &HiddenRows<'_, B>,
        first: usize,
    ) {
        let n = slice.len();
        if self.progress[seq].is_idle() {
            let end = self.progress[seq].end();
            self.keep_last_state(seq);
            self.restart(seq, end);
        }
        self.mark(seq, n, hidden, first);
        let (at, width) = (seq * self.states.n_rows, self.states.width);
        let backend = self.context.backend();
        let progress = &mut self.progress[seq];
        let n_pending = progress.pending.len();
        if n_pending + n < self.states.n_rows {
            progress.pending.extend(slice);
            let to = at + n_pending + 1;
            hidden.copy(backend, first, &mut self.states.pending, to, n);
            return;
        }
        // Only a prompt is longer, and a prompt needs no verification.
        assert_eq!(
            n_pending, 0,
            "room is made before a pass is taken over; drafts fit"
        );
        let States {
            pending, gathered, ..
        } = &mut self.states;
        backend.copy_rows(pending, at, gathered, 0, width, 1);
        hidden.copy(backend, first, gathered, 1, n - 1);
        let mut batch = Batch::default();
        batch.push_slice(seq, progress.evaluated, slice, Outputs::None);
        progress.evaluated += n as u32;
        self.run(&batch);
        self.copy_state(hidden, first + n - 1, seq);
    }

    /// Saves the persistent ones of the states of the next `n` tokens.
    fn mark(&mut self, seq: SeqId, n: usize, hidden: &HiddenRows<'_, B>, first: usize) {
        let end = self.progress[seq].end() as usize;
        let backend = self.context.backend();
        // The state of a token is paired with the next one.
        let positions = (end + 1..=end + n).filter(|position| position % MARK_EVERY == 0);
        for position in positions {
            let to = seq * self.states.n_marks + position / MARK_EVERY;
            let row = first + position - end - 1;
            hidden.copy(backend, row, &mut self.states.marks, to, 1);
        }
    }

    /// The prompt of a sequence ends here: evaluates it, so that the first draft does not have to.
    fn evaluate_prompt(&mut self, seq: SeqId) {
        self.catch_up();
        self.progress[seq].requested();
    }

    /// Evaluates the pending tokens of all sequences in one pass. Only called between target passes, while all
    /// of them are verified.
    fn catch_up(&mut self) {
        let mut batch = Batch::default();
        for seq in 0..self.progress.len() {
            let Progress {
                evaluated, pending, ..
            } = &self.progress[seq];
            let n = pending.len();
            let to = batch.push_slice(seq, *evaluated, pending.whole(), Outputs::None);
            self.gather(seq, n, to);
        }
        if !batch.is_empty() {
            self.run(&batch);
        }
        for seq in 0..self.progress.len() {
            self.caught_up(seq);
        }
    }

    /// Copies the first `n` states paired with pending tokens to the rows of a pass from `to` on.
    fn gather(&mut self, seq: SeqId, n: usize, to: usize) {
        let from = seq * self.states.n_rows;
        let States {
            pending,
            gathered,
            width,
            ..
        } = &mut self.states;
        let backend = self.context.backend();
        backend.copy_rows(pending, from, gathered, to, *width, n);
    }

    /// Fuses the states of a pass, where the draft has a fusion.
    fn fuse(&mut self, n: usize) {
        let Some(fusion) = &self.fusion else { return };
        let States {
            gathered,
            normed,
            fused,
            ..
        } = &mut self.states;
        fusion.forward(self.context.backend(), gathered, n, normed, fused);
    }

    /// Runs tokens whose states were gathered.
    fn run(&mut self, batch: &Batch) {
        self.fuse(batch.len());
        let input = match self.fusion {
            Some(_) => &self.states.fused,
            None => &self.states.gathered,
        };
        for head in 0..self.context.n_heads() {
            if head > 0 {
                for Run { seq, rows } in batch.runs() {
                    let (first, at) = (self.progress[seq].first, batch.positions[rows.start]);
                    rewind(&mut self.context, seq, first, at);
                }
            }
            self.context.select_head(head);
            self.context.forward(batch, Some(input));
        }
        self.context.select_head(0);
    }

    /// Counts the pending tokens of a sequence as evaluated.
    fn caught_up(&mut self, seq: SeqId) {
        self.keep_last_state(seq);
        let progress = &mut self.progress[seq];
        progress.evaluated = progress.end();
        progress.pending.truncate(0);
    }

    /// Moves the state before the next token to the front.
    fn keep_last_state(&mut self, seq: SeqId) {
        let (at, width) = (seq * self.states.n_rows, self.states.width);
        let last = at + self.progress[seq].pending.len();
        let States {
            pending, gathered, ..
        } = &mut self.states;
        let backend = self.context.backend();
        backend.copy_rows(pending, last, gathered, 0, width, 1);
        backend.copy_rows(gathered, 0, pending, at, width, 1);
    }

    /// Fills in the drafts; their first step evaluates the pending tokens.
    fn fill_in(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let seqs: Vec<SeqId> = requests.iter().map(|request| request.seq).collect();
        let rows = |seq: &SeqId| self.progress[*seq].pending.len() + 1;
        if seqs.iter().map(rows).sum::<usize>() > self.context.config().n_batch {
            self.catch_up();
        }
        let mut at = 0;
        for &seq in &seqs {
            let n = self.progress[seq].pending.len() + 1;
            self.gather(seq, n, at);
            at += n;
        }
        self.fuse(at);
        let leads = seqs.iter().map(|&seq| self.progress[seq].pending.whole());
        let leads: Vec<TextSlice<'_>> = leads.collect();
        let hidden = match self.fusion {
            Some(_) => &mut self.states.fused,
            None => &mut self.states.gathered,
        };
        let hidden = Some(hidden);
        draft_tokens(&mut self.context, &self.limits, requests, &leads, hidden)?;
        for seq in seqs {
            self.caught_up(seq);
            self.progress[seq].requested();
            // Drafted tokens were evaluated with states of the draft itself.
            self.context.truncate(seq, self.progress[seq].evaluated);
        }
        Ok(())
    }

    /// Fills in the drafts with chained heads: head `i` proposes token `i`, and reads the states that the
    /// heads before it returned for the tokens before that one. Its cache has only its own keys, so it
    /// evaluates these tokens again.
    fn fill_in_chained(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        self.catch_up();
        let seqs: Vec<SeqId> = requests.iter().map(|request| request.seq).collect();
        let mut active: Vec<usize> = (0..requests.len()).collect();
        for head in 0..self.n_max() {
            if active.is_empty() {
                break;
            }
            let mut batch = Batch::default();
            for &i in &active {
                let request = &requests[i];
                self.rewind(request.seq);
                let position = self.progress[request.seq].evaluated;
                let tokens = [&[request.last], request.draft.as_slice()].concat();
                let row = batch.push(request.seq, position, &tokens, Outputs::Last);
                self.gather(request.seq, 1, row);
                self.gather_chain(request.seq, head, row + 1);
            }
            self.context.select_head(head);
            self.context.forward(&batch, Some(&self.states.gathered));
            for (&i, &row) in active.iter().zip(&batch.outputs) {
                let States {
                    chain,
                    width,
                    n_heads,
                    ..
                } = &mut self.states;
                let to = requests[i].seq * *n_heads + head;
                let context = &self.context;
                let backend = context.backend();
                backend.copy_rows(context.carried(), row, chain, to, *width, 1);
            }
            let unfinished = take_tokens(&self.context, &self.limits, requests, &active)?;
            active = unfinished.into_iter().map(|row| active[row]).collect();
        }
        self.context.select_head(0);
        for seq in seqs {
            self.rewind(seq);
            self.progress[seq].requested();
        }
        Ok(())
    }

    /// Copies the states of the first `n` steps of a chained draft to the rows of a pass from `to` on.
    fn gather_chain(&mut self, seq: SeqId, n: usize, to: usize) {
        let States {
            chain,
            gathered,
            width,
            n_heads,
            ..
        } = &mut self.states;
        let backend = self.context.backend();
        backend.copy_rows(chain, seq * *n_heads, gathered, to, *width, n);
    }

    /// Drops the tokens of a sequence's draft from the context.
    fn rewind(&mut self, seq: SeqId) {
        let Progress {
            first, evaluated, ..
        } = self.progress[seq];
        rewind(&mut self.context, seq, first, evaluated);
    }

    /// The last pass of a sequence was verified: drops the tokens of its text from `len` on, which are
    /// rejected, and still pending.
    fn verified(&mut self, seq: SeqId, len: u32) {
        let progress = &mut self.progress[seq];
        let position = len.saturating_sub(self.lead);
        assert!(
            (progress.evaluated..=progress.end()).contains(&position),
            "sequence {seq}: tokens up to {} are in the draft context, {} are pending, \
             but {position} are accepted",
            progress.evaluated,
            progress.pending.len()
        );
        let n_kept = position - progress.evaluated;
        progress.pending.truncate(n_kept as usize);
    }

    /// Makes a sequence a copy of the start of another, up to the last persistent state in its first `len`
    /// tokens. Returns the length of the copy, in tokens of the text.
    fn copy(&mut self, from: SeqId, to: SeqId, len: u32) -> u32 {
        let Progress {
            first, evaluated, ..
        } = self.progress[from];
        let mark = evaluated.min(len.saturating_sub(self.lead)) as usize / MARK_EVERY;
        let position = (mark * MARK_EVERY) as u32;
        if position <= first {
            self.restart(to, 0);
            return 0;
        }
        self.context.share(from, to, position);
        let States {
            marks,
            width,
            n_marks,
            ..
        } = &mut self.states;
        let at = |seq: SeqId| seq * *n_marks * *width;
        let backend = self.context.backend();
        backend.copy_within(marks, at(from), at(to), (mark + 1) * *width);
        self.resume(to, first, mark);
        position + self.lead
    }

    /// Rolls a sequence back to the first `len` tokens of its text. Returns how many of them need not be
    /// processed again: fewer than `len` if it can only continue at an earlier persistent state.
    fn roll_back(&mut self, seq: SeqId, len: u32) -> u32 {
        let position = len.saturating_sub(self.lead);
        if position == 0 {
            self.restart(seq, 0);
            return 0;
        }
        let progress = &mut self.progress[seq];
        if position >= progress.end() {
            return len.min(progress.end() + self.lead);
        }
        if position >= progress.evaluated {
            let n_kept = position - progress.evaluated;
            progress.pending.truncate(n_kept as usize);
            progress.requested();
            return len;
        }
        let first = progress.first;
        let mark = position as usize / MARK_EVERY;
        let position = (mark * MARK_EVERY) as u32;
        if position <= first {
            self.restart(seq, 0);
            return 0;
        }
        self.context.truncate(seq, position);
        self.resume(seq, first, mark);
        position + self.lead
    }

    /// Continues a sequence, which starts at position `first`, at one of its persistent states.
    fn resume(&mut self, seq: SeqId, first: u32, mark: usize) {
        let position = (mark * MARK_EVERY) as u32;
        self.progress[seq] = Progress {
            first,
            ..Progress::at(position)
        };
        let States {
            pending,
            marks,
            width,
            n_rows,
            n_marks,
            ..
        } = &mut self.states;
        let from = seq * *n_marks + mark;
        let backend = self.context.backend();
        backend.copy_rows(marks, from, pending, seq * *n_rows, *width, 1);
    }
}

/// Drops the positions of a sequence from `position` on; `first` is its first position.
fn rewind<B: Backend>(context: &mut Context<B>, seq: SeqId, first: u32, position: u32) {
    match position > first {
        true => _ = context.truncate(seq, position),
        false => context.restart(seq, position),
    }
}

impl<B: Backend> Speculator<B> for HiddenStateDraft<B> {
    fn kind(&self) -> SpecType {
        self.kind
    }

    fn n_max(&self) -> usize {
        match self.states.n_heads {
            0 => self.limits.n_max,
            n_heads => self.limits.n_max.min(n_heads),
        }
    }

    fn begin(&mut self, seq: SeqId, _prompt: &[u32]) -> Result<(), Error> {
        self.evaluate_prompt(seq);
        Ok(())
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        let width = self.states.width;
        let states = match &self.context.model().hparams.features {
            Some(features) => pass.feature_rows(&features.layers, width),
            None => pass.hidden_rows(width),
        };
        self.take_over(pass.batch, &states);
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        match self.states.n_heads {
            0 => self.fill_in(requests),
            _ => self.fill_in_chained(requests),
        }
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.verified(committed.seq, committed.len);
        Ok(())
    }

    fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> Result<u32, Error> {
        Ok(self.copy(from, to, len))
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        Ok(self.roll_back(seq, len))
    }
}
