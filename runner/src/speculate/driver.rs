//! [`Driver`]: the loop. Draft, one target pass over all sequences, accept, roll back.
//!
//! A sequence's token is chosen from the target's own logits, by the same sampler and the
//! same draw as without speculation ([`Verification::Match`](super::Verification::Match)). Since those
//! logits do not depend on what else is in the pass, speculation cannot change a text.

use std::rc::Rc;
use std::time::{Duration, Instant};

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId, Text};
use crate::context::Context;
use crate::error::Error;
use crate::metrics::Tally;
use crate::sample::Draw;

use super::accept::{Accepted, accept};
use super::cost::Clock;
use super::drafters::{Draft, Drafters};
use super::rows::Wanted;
use super::sequences::Slot;
use super::{
    Committed, Completion, DecodeConfig, DraftRequest, Guessing, Policy, Request, Speculator, Stop,
    TargetPass,
};

/// Seconds that speculators took.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrafterSeconds {
    /// For seeing what the target ran.
    pub process: f64,
    /// For drafts, and what they had not read before.
    pub drafting: f64,
}

/// A target, and the speculators that draft for it.
pub struct Driver<B: Backend> {
    pub(super) target: Context<B>,
    pub(super) drafters: Drafters<B>,
    /// What the target's caches hold of each sequence.
    pub(super) texts: Vec<Text>,
    /// The sequences that are being written.
    pub(super) slots: Vec<Option<Slot>>,
    round: Round,
}

/// What a round works on; kept for the memory.
#[derive(Default)]
struct Round {
    /// Sequences that have something left to write.
    writing: Vec<SeqId>,
    /// One for each sequence.
    drafts: Vec<Draft>,
    batch: Batch,
}

impl<B: Backend> Driver<B> {
    /// The contexts of all have the same number of sequences.
    pub fn new(
        target: Context<B>,
        speculators: Vec<Box<dyn Speculator<B>>>,
        policy: Policy,
    ) -> Driver<B> {
        let n_seq = target.config().cache.n_seq;
        Driver {
            target,
            drafters: Drafters::new(speculators, policy),
            texts: vec![Text::default(); n_seq],
            slots: (0..n_seq).map(|_| None).collect(),
            round: Round::default(),
        }
    }

    /// Lets what passes cost, as this clock tells it, choose how long drafts are.
    pub fn paced(mut self, clock: Rc<dyn Clock>) -> Driver<B> {
        self.drafters.set_pace(clock);
        self
    }

    /// The target.
    pub fn target(&self) -> &Context<B> {
        &self.target
    }

    /// Continues all prompts, as many at once as the target has sequences; results in their order,
    /// and what all of them took together. Sequences that were being written are dropped.
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

    /// Decodes like [`Driver::decode`] until `stop` returns true: then the texts end where they are,
    /// and requests that were not begun have none.
    ///
    /// # Errors
    /// As of [`Driver::decode`].
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
        // Only an interrupt leaves requests without one.
        let completions: Vec<Completion> = completions
            .into_iter()
            .map(|completion| completion.unwrap_or_else(Completion::interrupted))
            .collect();
        completions
            .iter()
            .for_each(|completion| total.add_counts(&completion.tally));
        total.speculators = self.drafters.tallies().cloned().collect();
        Ok((completions, total))
    }

    /// Moves out the texts of all sequences, finished or not.
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

    /// Moves a sequence's text out once nothing is left to write.
    fn finish(&mut self, seq: SeqId, completions: &mut [Option<Completion>]) {
        let slot = self.slots[seq].as_ref();
        let Some(request) = slot.filter(|slot| slot.left == 0).map(|slot| slot.request) else {
            return;
        };
        completions[request] = self.leave(seq);
    }

    /// Seconds that all speculators took so far.
    pub fn drafters_seconds(&self) -> DrafterSeconds {
        let mut seconds = DrafterSeconds::default();
        for tally in self.drafters.tallies() {
            seconds.process += (tally.process + tally.begin).as_secs_f64();
            seconds.drafting += tally.drafting.as_secs_f64();
        }
        seconds
    }

    /// Runs a batch on the target and shows it to every speculator; returns the time of the former.
    pub(super) fn pass(&mut self, batch: &Batch, wanted: Wanted) -> Duration {
        let started = self.drafters.now();
        wanted.run(&mut self.target, batch);
        let elapsed = self.drafters.now() - started;
        let pass = TargetPass {
            batch,
            hidden: self.target.hidden(),
            features: self.target.features(),
        };
        self.drafters.process(&pass);
        elapsed
    }

    pub(super) fn tell_failures(&mut self, config: &mut DecodeConfig<'_>) {
        for failure in self.drafters.take_failures() {
            (config.on_failure)(&failure);
        }
    }

    /// One target pass for all sequences that have something left to write; each gets one token or
    /// more. Returns its time.
    ///
    /// # Errors
    /// Logits have no largest element.
    pub fn round(&mut self, config: &mut DecodeConfig<'_>) -> Result<Duration, Error> {
        let started = Instant::now();
        let wanted = Wanted::of(config);
        let mut round = std::mem::take(&mut self.round);
        self.draft(config, &mut round.drafts);
        let Round {
            writing,
            drafts,
            batch,
        } = &mut round;
        writing.clear();
        batch.clear();
        for (seq, slot) in self.writing() {
            writing.push(seq);
            let start = self.texts[seq].len() as u32;
            batch.push(seq, start, &[slot.last], Outputs::All);
            batch.push(seq, start + 1, &drafts[seq].tokens, Outputs::All);
        }
        let pass = self.pass(batch, wanted);
        self.target.check()?;
        let (n_seq, width) = (writing.len(), batch.len());
        let mut n_written = 0;
        let mut rows = wanted.rows(&self.target);
        for &seq in &*writing {
            let Some(slot) = &mut self.slots[seq] else {
                continue;
            };
            let Draft {
                by,
                tokens: draft,
                guesses,
            } = &drafts[seq];
            let own;
            (own, rows) = rows.split_at(draft.len() + 1);
            let start = self.texts[seq].len() as u64 + 1;
            let choose = |i: usize| {
                let draw = Draw {
                    stream: slot.request as u64,
                    position: start + i as u64,
                };
                let sampler = &config.sampler;
                // Guesses are drawn only where tokens are.
                match guesses.get(i).zip(own.logits(i)) {
                    None => own.sample(i, sampler, draw),
                    Some((guesses, logits)) => {
                        sampler.accept_or_redraw(logits, draft[i], guesses, draw)
                    }
                }
            };
            let Accepted { n_accepted, bonus } = accept(draft, choose, config.is_end)?;
            slot.completion.tally.pass(*by, draft.len(), n_accepted);
            slot.completion.tally.weight_bytes += self.target.model().pass_bytes as u64;
            let text = &mut self.texts[seq];
            text.tokens.push(slot.last);
            text.tokens.extend_from_slice(&draft[..n_accepted]);
            let len = text.len() as u32;
            let committed = Committed {
                seq,
                by: *by,
                n_accepted,
                len,
            };
            self.drafters.accept(committed, draft.len());
            n_written += n_accepted + 1;
            let tokens = draft[..n_accepted].iter().copied().chain([bonus]);
            let logits = (0..).map(|i| own.logits(i));
            slot.commit(tokens.zip(logits), config);
        }
        for &seq in &*writing {
            self.target.truncate(seq, self.texts[seq].len() as u32);
        }
        self.drafters.ran(n_seq, width, n_written, pass);
        self.round = round;
        self.tell_failures(config);
        Ok(started.elapsed())
    }

    /// The sequences that have something left to write.
    pub(super) fn writing(&self) -> impl Iterator<Item = (SeqId, &Slot)> {
        let slots = self.slots.iter().enumerate();
        let taken = slots.filter_map(|(seq, slot)| Some((seq, slot.as_ref()?)));
        taken.filter(|(_, slot)| slot.left > 0)
    }

    /// A draft for each sequence.
    fn draft(&mut self, config: &DecodeConfig<'_>, drafts: &mut Vec<Draft>) {
        drafts.resize_with(self.slots.len(), Draft::default);
        drafts.iter_mut().for_each(Draft::clear);
        if self.drafters.is_empty() {
            return;
        }
        let n_ctx = self.target.config().cache.n_ctx;
        let (texts, slots) = (&self.texts, &self.slots);
        let wanted = slots.iter().zip(texts).enumerate();
        let wanted = wanted.filter_map(|(seq, (slot, text))| {
            let slot = slot.as_ref().filter(|slot| slot.left > 0)?;
            Some(DraftRequest {
                seq,
                history: &text.tokens,
                last: slot.last,
                // The pass commits one token more than it accepts.
                n_max: (slot.left - 1).min(n_ctx - text.len() - 1),
                guessing: match config.sampler.is_greedy() {
                    true => Guessing::Likeliest,
                    false => Guessing::Drawn {
                        sampler: config.sampler,
                        stream: slot.request as u64,
                        verification: config.verification,
                    },
                },
                draft: Vec::new(),
                guesses: Vec::new(),
            })
        });
        let wanted: Vec<DraftRequest<'_>> = wanted.collect();
        self.drafters.draft(&wanted, drafts);
    }
}
