//! [`Follower`]: a draft that feeds on the target's hidden states, and what it keeps of them.
//!
//! Each token of its context comes with a hidden state of the target, that of the position before.
//! What the target ran waits until a draft is wanted, so rejected tokens never enter the context, and
//! what waits goes through it together with the first step of the draft. Where states are fused they
//! wait as they are: a draft that nobody wants costs no more than their copies.

use std::sync::Arc;

use kernels::backend::Backend;
use schemas::arch::Hparams;

use crate::batch::{Batch, Outputs, Run, SeqId, Text, TextPart};
use crate::context::{Context, ContextConfig};
use crate::error::Error;
use crate::memory::Memory;
use crate::model::Fusion;

use super::DraftRequest;
use super::chain::{ChainConfig, draft_chain};
use super::reader::FORGOTTEN;

/// One state in so many is kept for good, so that a text can be taken back there.
const MARK_EVERY: usize = 64;

/// A context that follows the target's.
pub(super) struct Follower<B: Backend> {
    context: Context<B>,
    chain: ChainConfig,
    /// Positions that a token's place in the context is before its place in the text.
    lead: u32,
    trails: Vec<Trail>,
    states: States<B>,
    /// What makes inputs of the draft of them, where it does not take them as they are.
    fusion: Option<Arc<Fusion<B>>>,
    zero: Vec<f32>,
}

/// The target's hidden states that a draft feeds on.
pub(crate) struct States<M: Memory> {
    /// Elements of a state.
    width: usize,
    /// Those that go with each sequence's waiting tokens, and one more, which goes with the token to
    /// come: (n_seq, n_rows, width).
    waiting: M::Floats,
    n_rows: usize,
    /// Those kept for good: (n_seq, n_marks, width).
    marks: M::Floats,
    n_marks: usize,
    /// Those of a pass, which go into the context beside the tokens if nothing fuses them:
    /// (n_batch, width).
    gathered: M::Floats,
    /// The same, normalised, where a fusion does that: (n_batch, width).
    normed: M::Floats,
    /// What the fusion makes of them: (n_batch, n_embd).
    fused: M::Floats,
}

impl<M: Memory> States<M> {
    /// Those of a draft in a context of that size.
    pub(crate) fn new(memory: &M, config: &ContextConfig, draft: &Hparams) -> States<M> {
        let (n_seq, n_batch) = (config.cache.n_seq, config.n_batch);
        let n_embd = draft.n_embd as usize;
        let features = draft.features.as_ref();
        let width = features.map_or(n_embd, |features| features.width() as usize);
        let n_fused = features.map_or(0, |_| n_batch);
        let n_normed = features.map_or(0, |features| match features.norm_before_fc {
            true => n_batch,
            false => 0,
        });
        let n_rows = n_batch / n_seq + 1;
        let n_marks = config.cache.n_ctx / MARK_EVERY + 1;
        States {
            width,
            // From pass to pass: a read of what nobody wrote must show, as in caches.
            waiting: memory.kept(n_seq * n_rows * width),
            marks: memory.kept(n_seq * n_marks * width),
            gathered: memory.passing(n_batch * width),
            normed: memory.passing(n_normed * width),
            fused: memory.passing(n_fused * n_embd),
            n_rows,
            n_marks,
        }
    }
}

/// A sequence, by places in the context.
#[derive(Clone, Debug, Default)]
struct Trail {
    /// The first place that the context holds.
    first: u32,
    /// Behind the last one.
    start: u32,
    /// The tokens from there on.
    waiting: Text,
    /// Passes of the target since a draft was wanted.
    n_passes: usize,
}

impl Trail {
    /// The place of the token to come.
    fn end(&self) -> u32 {
        self.start + self.waiting.len() as u32
    }

    /// Whether the text went on token by token, and nobody asked.
    fn is_silent(&self) -> bool {
        let n = self.waiting.len();
        n >= FORGOTTEN && 2 * self.n_passes > n
    }
}

impl<B: Backend> Follower<B> {
    /// `lead` is 0 where a token's place in the context is that in the text, 1 where it is the one
    /// before.
    pub(super) fn new(
        context: Context<B>,
        chain: ChainConfig,
        lead: u32,
        fusion: Option<Arc<Fusion<B>>>,
    ) -> Follower<B> {
        let config = *context.config();
        let n_seq = config.cache.n_seq;
        let states = States::new(context.backend(), &config, &context.model().hparams);
        let mut follower = Follower {
            trails: vec![Trail::default(); n_seq],
            zero: vec![0.0; states.width],
            states,
            fusion,
            context,
            chain,
            lead,
        };
        (0..n_seq).for_each(|seq| follower.restart(seq, 0));
        follower
    }

    pub(super) fn n_max(&self) -> usize {
        self.chain.n_max
    }

    /// The target ran a batch; `hidden` are its states, row by row.
    pub(super) fn process(&mut self, batch: &Batch, hidden: &B::Buffer) {
        for Run { seq, mut rows } in batch.runs() {
            let place = i64::from(batch.positions[rows.start]) - i64::from(self.lead);
            let end = i64::from(self.trails[seq].end());
            if (0..=end).contains(&place) {
                // What was seen before is run again for others.
                rows.start = rows.end.min(rows.start + (end - place) as usize);
            } else {
                // No state goes with the first token, but its own goes with the next.
                self.restart(seq, (place + 1) as u32);
                self.copy_state(hidden, rows.start, seq);
                rows.start += 1;
            }
            self.trails[seq].n_passes += 1;
            if !rows.is_empty() {
                self.append(seq, batch.part(rows.clone()), hidden, rows.start);
            }
        }
    }

    /// Forgets a sequence, which goes on at that place.
    fn restart(&mut self, seq: SeqId, at: u32) {
        self.context.restart(seq, at);
        self.trails[seq] = Trail {
            first: at,
            start: at,
            ..Trail::default()
        };
        if at == 0 {
            // Nothing is before a text.
            let to = seq * self.states.n_rows * self.states.width;
            let backend = self.context.backend();
            backend.upload(&self.zero, &mut self.states.waiting, to);
        }
    }

    /// Makes a row the state of the token to come, with no token waiting.
    fn copy_state(&mut self, hidden: &B::Buffer, row: usize, seq: SeqId) {
        let (to, width) = (seq * self.states.n_rows, self.states.width);
        let backend = self.context.backend();
        backend.copy_rows(hidden, row, &mut self.states.waiting, to, width, 1);
    }

    /// Adds tokens, whose own states are the rows of `hidden` from `first` on.
    fn append(&mut self, seq: SeqId, part: TextPart<'_>, hidden: &B::Buffer, first: usize) {
        let n = part.len();
        if self.trails[seq].is_silent() {
            let end = self.trails[seq].end();
            self.keep_last_state(seq);
            self.restart(seq, end);
        } else if self.trails[seq].waiting.len() + n + 1 > self.states.n_rows {
            self.catch_up();
        }
        self.mark(seq, n, hidden, first);
        let (at, width) = (seq * self.states.n_rows, self.states.width);
        let backend = self.context.backend();
        let trail = &mut self.trails[seq];
        let waiting = trail.waiting.len();
        if waiting + n < self.states.n_rows {
            trail.waiting.extend(part);
            let to = at + waiting + 1;
            backend.copy_rows(hidden, first, &mut self.states.waiting, to, width, n);
            return;
        }
        // More than can wait, as a prompt is.
        backend.copy_rows(
            &self.states.waiting,
            at,
            &mut self.states.gathered,
            0,
            width,
            1,
        );
        backend.copy_rows(hidden, first, &mut self.states.gathered, 1, width, n - 1);
        let mut batch = Batch::default();
        batch.push_part(seq, trail.start, part, Outputs::None);
        trail.start += n as u32;
        self.run(&batch);
        self.copy_state(hidden, first + n - 1, seq);
    }

    /// Keeps those of the states of `n` tokens to come that are kept for good.
    fn mark(&mut self, seq: SeqId, n: usize, hidden: &B::Buffer, first: usize) {
        let end = self.trails[seq].end() as usize;
        let backend = self.context.backend();
        // The state of a place goes with the token of the next.
        let places = (end + 1..=end + n).filter(|place| place % MARK_EVERY == 0);
        for place in places {
            let to = seq * self.states.n_marks + place / MARK_EVERY;
            let row = first + place - end - 1;
            backend.copy_rows(
                hidden,
                row,
                &mut self.states.marks,
                to,
                self.states.width,
                1,
            );
        }
    }

    /// Runs all that waits.
    pub(super) fn catch_up(&mut self) {
        let mut batch = Batch::default();
        for seq in 0..self.trails.len() {
            let trail = &self.trails[seq];
            let waiting = trail.waiting.whole();
            let to = batch.push_part(seq, trail.start, waiting, Outputs::None);
            self.gather(seq, waiting.len(), to);
        }
        if !batch.is_empty() {
            self.run(&batch);
        }
        for seq in 0..self.trails.len() {
            self.caught_up(seq);
        }
    }

    /// Puts the first `n` states that wait into the rows of a pass from `to` on.
    fn gather(&mut self, seq: SeqId, n: usize, to: usize) {
        let from = seq * self.states.n_rows;
        let backend = self.context.backend();
        backend.copy_rows(
            &self.states.waiting,
            from,
            &mut self.states.gathered,
            to,
            self.states.width,
            n,
        );
    }

    /// Fuses the states of a pass, where that is done.
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
        self.context.forward(batch, Some(input));
    }

    /// What waited is in the context.
    fn caught_up(&mut self, seq: SeqId) {
        self.keep_last_state(seq);
        let trail = &mut self.trails[seq];
        trail.start = trail.end();
        trail.waiting.truncate(0);
        trail.n_passes = 0;
    }

    /// Moves the state of the token to come to the front.
    fn keep_last_state(&mut self, seq: SeqId) {
        let (at, width) = (seq * self.states.n_rows, self.states.width);
        let n = self.trails[seq].waiting.len();
        let backend = self.context.backend();
        backend.copy_rows(
            &self.states.waiting,
            at + n,
            &mut self.states.gathered,
            0,
            width,
            1,
        );
        backend.copy_rows(
            &self.states.gathered,
            0,
            &mut self.states.waiting,
            at,
            width,
            1,
        );
    }

    /// Fills in the drafts, from what waits on.
    pub(super) fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        let seqs: Vec<SeqId> = requests.iter().map(|request| request.seq).collect();
        let rows = |seq: &SeqId| self.trails[*seq].waiting.len() + 1;
        if seqs.iter().map(rows).sum::<usize>() > self.context.config().n_batch {
            self.catch_up();
        }
        let mut at = 0;
        for &seq in &seqs {
            let n = self.trails[seq].waiting.len() + 1;
            self.gather(seq, n, at);
            at += n;
        }
        self.fuse(at);
        let leads = seqs.iter().map(|&seq| self.trails[seq].waiting.whole());
        let leads: Vec<TextPart<'_>> = leads.collect();
        let hidden = match self.fusion {
            Some(_) => &mut self.states.fused,
            None => &mut self.states.gathered,
        };
        let hidden = Some(hidden);
        draft_chain(&mut self.context, &self.chain, requests, &leads, hidden)?;
        for seq in seqs {
            self.caught_up(seq);
            // What was drafted was fed with states of the draft's own.
            self.context.truncate(seq, self.trails[seq].start);
        }
        Ok(())
    }

    /// Makes a sequence the beginning of another, as far as a state that is kept for good lets it go
    /// on: returns how many tokens that is.
    pub(super) fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> u32 {
        let Trail { first, start, .. } = self.trails[from];
        let mark = start.min(len.saturating_sub(self.lead)) as usize / MARK_EVERY;
        let place = (mark * MARK_EVERY) as u32;
        if place <= first {
            self.restart(to, 0);
            return 0;
        }
        self.context.share(from, to, place);
        self.trails[to] = Trail {
            first,
            start: place,
            ..Trail::default()
        };
        let States {
            width,
            n_rows,
            n_marks,
            ..
        } = self.states;
        let at = |seq: SeqId| seq * n_marks;
        let backend = self.context.backend();
        let (source, copy) = (at(from) * width, at(to) * width);
        backend.copy_within(&mut self.states.marks, source, copy, (mark + 1) * width);
        let state = at(to) + mark;
        backend.copy_rows(
            &self.states.marks,
            state,
            &mut self.states.waiting,
            to * n_rows,
            width,
            1,
        );
        place + self.lead
    }

    /// Takes a sequence back to the first `len` tokens of its text. Returns from which token on the
    /// target has to show its states again, if not from there.
    pub(super) fn truncate(&mut self, seq: SeqId, len: u32) -> u32 {
        let place = len.saturating_sub(self.lead);
        if place == 0 {
            self.restart(seq, 0);
            return 0;
        }
        let trail = &mut self.trails[seq];
        if place >= trail.end() {
            return len.min(trail.end() + self.lead);
        }
        if place >= trail.start {
            trail.waiting.truncate((place - trail.start) as usize);
            return len;
        }
        let mark = place as usize / MARK_EVERY;
        let place = (mark * MARK_EVERY) as u32;
        if place <= trail.first {
            self.restart(seq, 0);
            return 0;
        }
        (trail.start, trail.n_passes) = (place, 0);
        trail.waiting.truncate(0);
        let (from, to) = (seq * self.states.n_marks + mark, seq * self.states.n_rows);
        let backend = self.context.backend();
        backend.copy_rows(
            &self.states.marks,
            from,
            &mut self.states.waiting,
            to,
            self.states.width,
            1,
        );
        self.context.truncate(seq, place);
        place + self.lead
    }
}
