//! [`Drafters`]: the speculators of a run, the choice between them, and their statistics.
//!
//! A speculator that fails is switched off and decoding continues without it: drafts affect only
//! the speed.

use std::rc::Rc;
use std::time::Duration;

use kernels::backend::Backend;

use crate::batch::{NO_TOKEN, SeqId};
use crate::error::Error;
use crate::sample::Distribution;
use crate::tally::SpeculatorTally;

use super::cost::{Clock, Monotonic};
use super::pace::{Pace, Round};
use super::{Committed, DraftRequest, Policy, SpecType, Speculator, TargetPass};

/// A speculator that failed, with the error.
#[derive(Debug)]
pub struct Failure {
    /// The speculator.
    pub kind: SpecType,
    /// The error.
    pub error: Error,
}

/// The speculators of a run, in the order in which they are asked.
pub(super) struct Drafters<B: Backend> {
    active: Vec<Drafter<B>>,
    failed: Vec<Drafter<B>>,
    failures: Vec<Failure>,
    policy: Policy,
    clock: Rc<dyn Clock>,
    /// Chooses the draft length; `None` for the maximum.
    pace: Option<Pace>,
    /// Time that all speculators took since the last round, and the part of it spent on drafts.
    spent: Duration,
    drafting: Duration,
}

struct Drafter<B: Backend> {
    speculator: Box<dyn Speculator<B>>,
    tally: SpeculatorTally,
}

/// The draft to verify after a sequence's newest token; empty for plain decoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) by: Option<SpecType>,
    pub(super) tokens: Vec<u32>,
    /// Distributions the tokens were drawn from; empty if they were not drawn.
    pub(super) guesses: Vec<Distribution>,
    /// Accepted tokens, once the draft is verified.
    pub(super) n_accepted: usize,
}

impl Draft {
    /// Resets to plain decoding.
    pub(super) fn clear(&mut self) {
        self.by = None;
        self.tokens.clear();
        self.guesses.clear();
        self.n_accepted = 0;
    }
}

impl<B: Backend> Drafters<B> {
    pub(super) fn new(speculators: Vec<Box<dyn Speculator<B>>>, policy: Policy) -> Drafters<B> {
        let drafter = |speculator: Box<dyn Speculator<B>>| Drafter {
            tally: SpeculatorTally::new(speculator.kind()),
            speculator,
        };
        Drafters {
            active: speculators.into_iter().map(drafter).collect(),
            failed: Vec::new(),
            failures: Vec::new(),
            policy,
            clock: Rc::<Monotonic>::default(),
            pace: None,
            spent: Duration::ZERO,
            drafting: Duration::ZERO,
        }
    }

    /// Enables automatic draft lengths, from costs measured with this clock.
    pub(super) fn set_pace(&mut self, clock: Rc<dyn Clock>) {
        (self.clock, self.pace) = (clock, Some(Pace::default()));
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Records a round of `n_seq` sequences whose target pass over `width` tokens took `pass`.
    pub(super) fn ran(&mut self, n_seq: usize, width: usize, n_written: usize, pass: Duration) {
        let spent = std::mem::take(&mut self.spent);
        let drafting = std::mem::take(&mut self.drafting);
        if let Some(pace) = &mut self.pace {
            pace.ran(Round {
                n_seq,
                width,
                n_written,
                pass: pass.as_secs_f64(),
                following: spent.saturating_sub(drafting).as_secs_f64(),
            });
        }
    }

    /// Discards the time spent on a prompt, which does not belong to a round.
    pub(super) fn prompt_read(&mut self) {
        self.spent = Duration::ZERO;
    }

    /// Records that all speculators have evaluated all tokens of their sequences.
    pub(super) fn caught_up(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.caught_up();
        }
    }

    /// Returns the speculators that failed since the last call.
    pub(super) fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }

    /// The statistics of each speculator.
    pub(super) fn tallies(&self) -> impl Iterator<Item = &SpeculatorTally> {
        let all = self.active.iter().chain(&self.failed);
        all.map(|drafter| &drafter.tally)
    }

    pub(super) fn begin(&mut self, seq: SeqId, prompt: &[u32]) {
        self.each(
            |tally| &mut tally.begin,
            |drafter| {
                drafter.tally.n_calls_begin += 1;
                drafter.speculator.begin(seq, prompt)
            },
        );
    }

    /// Rolls a sequence back to its first `len` tokens. Returns how many of them no speculator has
    /// to process again.
    pub(super) fn truncate(&mut self, seq: SeqId, len: u32) -> u32 {
        let mut kept = len;
        self.each(
            |tally| &mut tally.accept,
            |drafter| {
                kept = kept.min(drafter.speculator.truncate(seq, len)?);
                Ok(())
            },
        );
        kept
    }

    /// Replaces a sequence by a copy of the first `len` tokens of another. Returns how many of them
    /// no speculator has to process.
    pub(super) fn share(&mut self, from: SeqId, to: SeqId, len: u32) -> u32 {
        let mut kept = len;
        self.each(
            |tally| &mut tally.accept,
            |drafter| {
                kept = kept.min(drafter.speculator.share(from, to, len)?);
                Ok(())
            },
        );
        kept
    }

    pub(super) fn process(&mut self, pass: &TargetPass<'_, B>) {
        self.each(
            |tally| &mut tally.process,
            |drafter| drafter.speculator.process(pass),
        );
    }

    /// Records that a sequence's pass over a draft of `n_drafted` tokens was verified.
    pub(super) fn accept(&mut self, committed: Committed, n_drafted: usize) {
        if let (Some(pace), Some(by)) = (&mut self.pace, committed.by) {
            pace.checked(by, n_drafted, committed.n_accepted);
        }
        self.each(
            |tally| &mut tally.accept,
            |drafter| {
                if committed.by == Some(drafter.tally.kind) {
                    drafter.tally.n_calls_accept += 1;
                    drafter.tally.draft(n_drafted, committed.n_accepted);
                }
                drafter.speculator.accept(committed)
            },
        );
    }

    /// True if there are no speculators, or all have failed.
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Fills in a draft for each request; drafts are empty on entry. No draft is longer than the
    /// request's `n_max` or the speculator's own.
    pub(super) fn draft(&mut self, wanted: &[DraftRequest<'_>], drafts: &mut [Draft]) {
        let mut expected = vec![0.0; drafts.len()];
        let policy = self.policy;
        let mut pace = self.pace.take();
        let clock = Rc::clone(&self.clock);
        let mut drafting = Duration::ZERO;
        self.each(
            |tally| &mut tally.drafting,
            |drafter| {
                let kind = drafter.tally.kind;
                let is_open = |request: &&DraftRequest<'_>| {
                    policy == Policy::Best || drafts[request.seq].tokens.is_empty()
                };
                let n_max = drafter.speculator.n_max();
                let n_max = match &mut pace {
                    Some(pace) => pace.length(kind, wanted.iter().filter(is_open).count(), n_max),
                    None => n_max,
                };
                let mut requests = Vec::new();
                for request in wanted.iter().filter(is_open) {
                    let n_max = request.n_max.min(n_max);
                    if n_max > 0 {
                        requests.push(DraftRequest {
                            n_max,
                            ..request.clone()
                        });
                    }
                }
                if requests.is_empty() {
                    return Ok(());
                }
                drafter.tally.n_calls_draft += 1;
                let started = clock.now();
                drafter.speculator.draft(&mut requests)?;
                let elapsed = clock.now() - started;
                drafting += elapsed;
                let longest = requests.iter().map(|request| request.draft.len()).max();
                if let (Some(pace), Some(n)) = (&mut pace, longest) {
                    pace.drafted(kind, requests.len(), n, elapsed.as_secs_f64());
                }
                for request in requests {
                    let (mut tokens, guesses) = (request.draft, request.guesses);
                    tokens.truncate(request.n_max);
                    // A text can have positions without a token (embeddings), and so can a draft
                    // copied from it.
                    let n_tokens = tokens
                        .iter()
                        .take_while(|&&token| token != NO_TOKEN)
                        .count();
                    tokens.truncate(n_tokens);
                    let gain = drafter.tally.expected(tokens.len());
                    if gain > expected[request.seq] {
                        expected[request.seq] = gain;
                        let by = Some(kind);
                        drafts[request.seq] = Draft {
                            by,
                            tokens,
                            guesses,
                            n_accepted: 0,
                        };
                    }
                }
                Ok(())
            },
        );
        self.pace = pace;
        self.drafting += drafting;
    }

    /// Calls `step` for every speculator and adds up its time. A speculator that fails is switched
    /// off.
    fn each(
        &mut self,
        time: fn(&mut SpeculatorTally) -> &mut Duration,
        mut step: impl FnMut(&mut Drafter<B>) -> Result<(), Error>,
    ) {
        let mut i = 0;
        while let Some(drafter) = self.active.get_mut(i) {
            let started = self.clock.now();
            let result = step(drafter);
            let elapsed = self.clock.now() - started;
            *time(&mut drafter.tally) += elapsed;
            self.spent += elapsed;
            match result {
                Ok(()) => i += 1,
                Err(error) => {
                    let kind = drafter.tally.kind;
                    self.failures.push(Failure { kind, error });
                    self.failed.push(self.active.remove(i));
                }
            }
        }
    }
}
