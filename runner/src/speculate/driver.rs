//! [`Driver`], the decode loop: draft, one target pass over all sequences, accept, roll back.
//!
//! Every token is chosen from the target's own logits, by the same sampler and the same random draw
//! as without speculation ([`Verification::Match`](super::Verification::Match)). These logits do
//! not depend on the rest of the batch, so speculation cannot change a text.

use std::rc::Rc;
use std::time::{Duration, Instant};

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId, Text};
use crate::cache::Rollback;
use crate::context::Context;
use crate::error::Error;
use crate::sample::Draw;
use crate::tally::Tally;

use super::accept::{Accepted, accept};
use super::latency_model::Clock;
use super::output_rows::OutputKind;
use super::sequences::Slot;
use super::speculator_set::{Draft, SpeculatorSet};
use super::{
    Committed, Completion, DecodeConfig, DraftRequest, DraftSampling, Policy, Request, RoundEvent,
    Speculator, Stop, TargetPass,
};

/// Seconds spent in speculators.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpeculatorSeconds {
    /// Processing of target batches, and starts of sequences.
    pub process: f64,
    /// Drafting, including the evaluation of pending tokens.
    pub drafting: f64,
}

/// A target, and the speculators that draft for it.
pub struct Driver<B: Backend> {
    pub(super) target: Context<B>,
    pub(super) speculators: SpeculatorSet<B>,
    /// The tokens of each sequence in the target's caches.
    pub(super) texts: Vec<Text>,
    /// The sequences that are being generated.
    pub(super) slots: Vec<Option<Slot>>,
    round: Round,
    n_rounds: u64,
}

/// Buffers of a round, reused between rounds.
#[derive(Default)]
struct Round {
    /// Sequences that have tokens left to generate.
    seqs: Vec<SeqId>,
    /// One draft per sequence.
    drafts: Vec<Draft>,
    batch: Batch,
}

impl<B: Backend> Driver<B> {
    /// Creates a driver. All contexts must have the same number of sequences.
    pub fn new(
        target: Context<B>,
        speculators: Vec<Box<dyn Speculator<B>>>,
        policy: Policy,
    ) -> Driver<B> {
        let n_seq = target.config().cache.n_seq;
        Driver {
            target,
            speculators: SpeculatorSet::new(speculators, policy),
            texts: vec![Text::default(); n_seq],
            slots: (0..n_seq).map(|_| None).collect(),
            round: Round::default(),
            n_rounds: 0,
        }
    }

    /// Enables automatic draft lengths, from costs measured with this clock.
    pub fn with_automatic_length(mut self, clock: Rc<dyn Clock>) -> Driver<B> {
        self.speculators.set_automatic_length(clock);
        self
    }

    /// Returns the target's context.
    pub fn target(&self) -> &Context<B> {
        &self.target
    }

    /// Continues all prompts, as many at a time as the target has sequences. Returns the
    /// completions in the order of the requests, and their total tally. Sequences in progress are
    /// dropped.
    ///
    /// # Errors
    /// A prompt is empty, out of range or too long, or logits have no largest element.
    pub fn decode(
        &mut self,
        requests: &[Request],
        config: &mut DecodeConfig<'_>,
    ) -> Result<(Vec<Completion>, Tally), Error> {
        self.decode_until(requests, config, &|| false)
    }

    /// Decodes like [`Driver::decode`] until `stop` returns true. Completions in progress then end;
    /// requests that were not started get an empty completion.
    ///
    /// # Errors
    /// See [`Driver::decode`].
    pub fn decode_until(
        &mut self,
        requests: &[Request],
        config: &mut DecodeConfig<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Vec<Completion>, Tally), Error> {
        requests
            .iter()
            .try_for_each(|request| self.check(request))?;
        self.slots.iter_mut().for_each(|slot| *slot = None);
        let mut completions: Vec<Option<Completion>> = requests.iter().map(|_| None).collect();
        let mut n_joined = 0;
        let mut total = Tally::default();
        loop {
            for seq in 0..self.slots.len() {
                while self.slots[seq].is_none() && !stop() {
                    let [request, next @ ..] = &requests[n_joined..] else {
                        break;
                    };
                    self.join_before(seq, n_joined, request, next, config)?;
                    n_joined += 1;
                    self.finish(seq, &mut completions);
                }
            }
            if stop() {
                self.interrupt(&mut completions);
            }
            if self.slots.iter().all(Option::is_none) {
                break;
            }
            total.elapsed += self.round(config)?;
            total.weight_bytes += self.target.model().pass_bytes as u64;
            (0..self.slots.len()).for_each(|seq| self.finish(seq, &mut completions));
        }
        // Only an interrupt leaves requests without a completion.
        let completions: Vec<Completion> = completions
            .into_iter()
            .map(|completion| completion.unwrap_or_else(Completion::interrupted))
            .collect();
        completions
            .iter()
            .for_each(|completion| total.add_counts(&completion.tally));
        total.speculators = self.speculators.tallies().cloned().collect();
        Ok((completions, total))
    }

    /// Moves out the completions of all sequences, finished or not.
    fn interrupt(&mut self, completions: &mut [Option<Completion>]) {
        for seq in 0..self.slots.len() {
            let Some(request) = self.slots[seq].as_ref().map(|slot| slot.request) else {
                continue;
            };
            let completion = self.leave(seq);
            completions[request] = completion.map(|completion| Completion {
                stop: Stop::Interrupted,
                ..completion
            });
        }
    }

    /// Moves out a sequence's completion when it has no tokens left to generate.
    fn finish(&mut self, seq: SeqId, completions: &mut [Option<Completion>]) {
        let slot = self.slots[seq].as_ref();
        let Some(request) = slot.filter(|slot| slot.left == 0).map(|slot| slot.request) else {
            return;
        };
        completions[request] = self.leave(seq);
    }

    /// Returns the number of sequences.
    pub fn n_seq(&self) -> usize {
        self.slots.len()
    }

    /// Returns the length of the prefix that a prompt shares with the text in the caches of a
    /// sequence.
    pub fn n_shared(&self, seq: SeqId, prompt: &[u32]) -> usize {
        self.texts[seq].whole().n_shared(prompt.into())
    }

    /// Returns the seconds spent in all speculators so far.
    pub fn speculator_seconds(&self) -> SpeculatorSeconds {
        let mut seconds = SpeculatorSeconds::default();
        for tally in self.speculators.tallies() {
            seconds.process += (tally.process + tally.begin).as_secs_f64();
            seconds.drafting += tally.drafting.as_secs_f64();
        }
        seconds
    }

    /// Runs a batch on the target and passes it to every speculator. Returns the time of the target
    /// pass.
    pub(super) fn pass(&mut self, batch: &Batch, wanted: OutputKind) -> Duration {
        let started = self.speculators.now();
        wanted.run(&mut self.target, batch);
        let elapsed = self.speculators.now() - started;
        let pass = TargetPass {
            batch,
            hidden: self.target.carried(),
            features: self.target.features(),
            taps: &self.target.model().taps,
        };
        self.speculators.process(&pass);
        elapsed
    }

    pub(super) fn report_failures(&mut self, config: &mut DecodeConfig<'_>) {
        for failure in self.speculators.take_failures() {
            if let Some(on_failure) = &mut config.on_failure {
                on_failure(failure);
            }
        }
    }

    /// Runs one target pass over all sequences whose prompt is evaluated and that have tokens left to
    /// generate; each gets at least one token. Returns the time of the round.
    ///
    /// # Errors
    /// Logits have no largest element, or the device failed.
    pub fn round(&mut self, config: &mut DecodeConfig<'_>) -> Result<Duration, Error> {
        let started = Instant::now();
        let wanted = OutputKind::of(self.unfinished().map(|(_, slot)| &slot.config));
        let mut round = std::mem::take(&mut self.round);
        self.draft(&mut round.drafts);
        self.fill(&mut round);
        let pass = self.pass(&round.batch, wanted);
        self.target.check()?;
        let n_written = self.verify(&mut round, wanted, config)?;
        self.roll_back(&round, config);
        let (n_seq, width) = (round.seqs.len(), round.batch.len());
        self.speculators.record_round(n_seq, width, n_written, pass);
        self.round = round;
        self.report_failures(config);
        Ok(started.elapsed())
    }

    /// Fills the batch of a round: the newest token of each sequence, then its draft.
    fn fill(&self, round: &mut Round) {
        let Round {
            seqs,
            drafts,
            batch,
        } = round;
        seqs.clear();
        batch.clear();
        for (seq, slot) in self.unfinished() {
            seqs.push(seq);
            let start = self.texts[seq].len() as u32;
            batch.push(seq, start, &[slot.last], Outputs::All);
            batch.push(seq, start + 1, &drafts[seq].tokens, Outputs::All);
        }
    }

    /// Commits the accepted tokens of each draft and one token of the target's own. Returns the
    /// number of committed tokens.
    fn verify(
        &mut self,
        round: &mut Round,
        wanted: OutputKind,
        config: &mut DecodeConfig<'_>,
    ) -> Result<usize, Error> {
        let mut n_written = 0;
        let mut rows = wanted.rows(&self.target);
        for &seq in &round.seqs {
            let Some(slot) = &mut self.slots[seq] else {
                continue;
            };
            let draft = &mut round.drafts[seq];
            let own;
            (own, rows) = rows.split_at(draft.tokens.len() + 1);
            let text = &mut self.texts[seq];
            let start = text.len() as u64 + 1;
            let text_config = slot.config;
            let is_end = |token| !text_config.ignore_end && (config.is_end)(token);
            let stream = slot.stream();
            let choose = |i: usize| {
                let draw = Draw {
                    stream,
                    position: start + i as u64,
                };
                let sampler = &text_config.sampler;
                // Distributions exist only for drafts that rejection sampling verifies.
                match draft.distributions.get(i).zip(own.logits(i)) {
                    None => own.sample(i, sampler, draw),
                    Some((distribution, logits)) => {
                        sampler.accept_or_resample(logits, draft.tokens[i], distribution, draw)
                    }
                }
            };
            let Accepted { n_accepted, bonus } = accept(&draft.tokens, choose, is_end)?;
            draft.n_accepted = n_accepted;
            let n_drafted = draft.tokens.len();
            let accepted = &draft.tokens[..n_accepted];
            slot.completion.tally.pass(draft.by, n_drafted, n_accepted);
            slot.completion.tally.weight_bytes += self.target.model().pass_bytes as u64;
            text.tokens.push(slot.last);
            text.tokens.extend_from_slice(accepted);
            let committed = Committed {
                seq,
                by: draft.by,
                n_accepted,
                len: text.len() as u32,
            };
            self.speculators.accept(committed, n_drafted);
            n_written += n_accepted + 1;
            let tokens = accepted.iter().copied().chain([bonus]);
            let logits = (0..).map(|i| own.logits(i));
            slot.commit(tokens.zip(logits), config);
        }
        Ok(n_written)
    }

    /// Drops the rejected tokens of each sequence from the target's caches.
    fn roll_back(&mut self, round: &Round, config: &mut DecodeConfig<'_>) {
        for &seq in &round.seqs {
            let len = self.texts[seq].len();
            let n_rerun = self.target.truncate(seq, len as u32) as usize;
            let (Some(slot), Some(on_round)) = (&self.slots[seq], &mut config.on_round) else {
                continue;
            };
            let draft = &round.drafts[seq];
            let rollback = match (n_rerun, self.target.has_states()) {
                (0, false) => Rollback::Truncation,
                (0, true) => Rollback::States,
                _ => Rollback::Checkpoint,
            };
            on_round(&RoundEvent {
                round: self.n_rounds,
                request: slot.request,
                seq,
                position: len - 1 - draft.n_accepted,
                drafter: draft.by,
                drafted: &draft.tokens,
                n_accepted: draft.n_accepted,
                rollback: (draft.n_accepted < draft.tokens.len()).then_some(rollback),
                n_rerun,
            });
        }
        self.n_rounds += 1;
    }

    /// The sequences whose prompt is evaluated and that have tokens left to generate.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (SeqId, &Slot)> {
        let slots = self.slots.iter().enumerate();
        let taken = slots.filter_map(|(seq, slot)| Some((seq, slot.as_ref()?)));
        taken.filter(|(_, slot)| slot.is_decoding())
    }

    /// Collects a draft for each sequence.
    fn draft(&mut self, drafts: &mut Vec<Draft>) {
        drafts.resize_with(self.slots.len(), Draft::default);
        drafts.iter_mut().for_each(Draft::clear);
        if self.speculators.is_empty() {
            return;
        }
        let n_ctx = self.target.config().cache.n_ctx;
        let (texts, slots) = (&self.texts, &self.slots);
        let wanted = slots.iter().zip(texts).enumerate();
        let wanted = wanted.filter_map(|(seq, (slot, text))| {
            let slot = slot.as_ref().filter(|slot| slot.is_decoding())?;
            Some(DraftRequest {
                seq,
                history: &text.tokens,
                last: slot.last,
                // A pass commits one token more than it accepts.
                n_max: (slot.left - 1)
                    .min(n_ctx - text.len() - 1)
                    .min(slot.config.n_draft_max.unwrap_or(usize::MAX)),
                sampling: match slot.config.sampler.is_greedy() {
                    true => DraftSampling::Greedy,
                    false => DraftSampling::Sampled {
                        sampler: slot.config.sampler,
                        stream: slot.stream(),
                        verification: slot.config.verification,
                    },
                },
                draft: Vec::new(),
                distributions: Vec::new(),
            })
        });
        let wanted: Vec<DraftRequest<'_>> = wanted.collect();
        self.speculators.draft(&mut self.target, &wanted, drafts);
    }
}
