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
    /// Elements of a state.
    width: usize,
    /// The states that go with each sequence's waiting tokens, and one more, which goes with the
    /// token to come: (n_seq, n_rows, width).
    states: B::Buffer,
    n_rows: usize,
    /// States kept for good: (n_seq, n_marks, width).
    marks: B::Buffer,
    n_marks: usize,
    /// The states of a pass, which go into the context beside the tokens if nothing fuses them:
    /// (n_batch, width).
    gathered: B::Buffer,
    fused: Option<Fused<B>>,
    zero: Vec<f32>,
}

/// What makes inputs of states.
struct Fused<B: Backend> {
    fusion: Arc<Fusion<B>>,
    scratch: B::Buffer,
    /// (n_batch, n_embd)
    input: B::Buffer,
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

/// Rows of states that wait, and that are kept for good, for each sequence.
fn rows(config: &ContextConfig) -> (usize, usize) {
    let n_rows = config.n_batch / config.cache.n_seq + 1;
    (n_rows, config.cache.n_ctx / MARK_EVERY + 1)
}

/// Elements of all hidden states that a follower with this draft keeps.
pub(crate) fn hidden_floats(config: &ContextConfig, draft: &Hparams) -> usize {
    let (n_rows, n_marks) = rows(config);
    let n_states = config.cache.n_seq * (n_rows + n_marks) + config.n_batch;
    let n_embd = draft.n_embd as usize;
    let Some(features) = &draft.features else {
        return n_states * n_embd;
    };
    let width = features.width() as usize;
    let n_normed = if features.norm_before_fc {
        config.n_batch
    } else {
        0
    };
    (n_states + n_normed) * width + config.n_batch * n_embd
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
        let n_embd = context.model().hparams.n_embd as usize;
        let width = fusion.as_ref().map_or(n_embd, |fusion| fusion.width());
        let config = *context.config();
        let (n_seq, backend) = (config.cache.n_seq, context.backend());
        // Kept from pass to pass: a read of what nobody wrote must show, as in caches.
        let kept = |rows: usize| backend.buffer(rows * width);
        let (n_rows, n_marks) = rows(&config);
        let fused = fusion.map(|fusion| Fused {
            scratch: fusion.scratch(backend, config.n_batch),
            input: backend.scratch(config.n_batch * n_embd),
            fusion,
        });
        let mut follower = Follower {
            trails: vec![Trail::default(); n_seq],
            width,
            states: kept(n_seq * n_rows),
            marks: kept(n_seq * n_marks),
            gathered: backend.scratch(config.n_batch * width),
            fused,
            zero: vec![0.0; width],
            n_rows,
            n_marks,
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
            let to = seq * self.n_rows * self.width;
            let backend = self.context.backend();
            backend.upload(&self.zero, &mut self.states, to);
        }
    }

    /// Makes a row the state of the token to come, with no token waiting.
    fn copy_state(&mut self, hidden: &B::Buffer, row: usize, seq: SeqId) {
        let (to, width) = (seq * self.n_rows, self.width);
        let backend = self.context.backend();
        backend.copy_rows(hidden, row, &mut self.states, to, width, 1);
    }

    /// Adds tokens, whose own states are the rows of `hidden` from `first` on.
    fn append(&mut self, seq: SeqId, part: TextPart<'_>, hidden: &B::Buffer, first: usize) {
        let n = part.len();
        if self.trails[seq].is_silent() {
            let end = self.trails[seq].end();
            self.keep_last_state(seq);
            self.restart(seq, end);
        } else if self.trails[seq].waiting.len() + n + 1 > self.n_rows {
            self.catch_up();
        }
        self.mark(seq, n, hidden, first);
        let (at, width) = (seq * self.n_rows, self.width);
        let backend = self.context.backend();
        let trail = &mut self.trails[seq];
        let waiting = trail.waiting.len();
        if waiting + n < self.n_rows {
            trail.waiting.extend(part);
            let to = at + waiting + 1;
            backend.copy_rows(hidden, first, &mut self.states, to, width, n);
            return;
        }
        // More than can wait, as a prompt is.
        backend.copy_rows(&self.states, at, &mut self.gathered, 0, width, 1);
        backend.copy_rows(hidden, first, &mut self.gathered, 1, width, n - 1);
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
            let to = seq * self.n_marks + place / MARK_EVERY;
            let row = first + place - end - 1;
            backend.copy_rows(hidden, row, &mut self.marks, to, self.width, 1);
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
        let from = seq * self.n_rows;
        let backend = self.context.backend();
        backend.copy_rows(&self.states, from, &mut self.gathered, to, self.width, n);
    }

    /// Fuses the states of a pass, where that is done.
    fn fuse(&mut self, n: usize) {
        if let Some(Fused {
            fusion,
            scratch,
            input,
        }) = &mut self.fused
        {
            fusion.forward(self.context.backend(), &self.gathered, n, scratch, input);
        }
    }

    /// Runs tokens whose states were gathered.
    fn run(&mut self, batch: &Batch) {
        self.fuse(batch.len());
        let input = self
            .fused
            .as_ref()
            .map_or(&self.gathered, |fused| &fused.input);
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
        let (at, width) = (seq * self.n_rows, self.width);
        let n = self.trails[seq].waiting.len();
        let backend = self.context.backend();
        backend.copy_rows(&self.states, at + n, &mut self.gathered, 0, width, 1);
        backend.copy_rows(&self.gathered, 0, &mut self.states, at, width, 1);
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
        let hidden = match &mut self.fused {
            Some(fused) => &mut fused.input,
            None => &mut self.gathered,
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
        let (width, at) = (self.width, |seq: SeqId| seq * self.n_marks);
        let backend = self.context.backend();
        let (source, copy) = (at(from) * width, at(to) * width);
        backend.copy_within(&mut self.marks, source, copy, (mark + 1) * width);
        let state = at(to) + mark;
        backend.copy_rows(
            &self.marks,
            state,
            &mut self.states,
            to * self.n_rows,
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
        let (from, to) = (seq * self.n_marks + mark, seq * self.n_rows);
        let backend = self.context.backend();
        backend.copy_rows(&self.marks, from, &mut self.states, to, self.width, 1);
        self.context.truncate(seq, place);
        place + self.lead
    }
}
