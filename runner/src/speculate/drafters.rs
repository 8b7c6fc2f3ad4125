//! [`Drafters`]: the speculators of a run, which of them is asked, and how each fares.
//!
//! One that fails is switched off, and the text goes on without it: what it would have drafted can
//! change only the speed.

use std::rc::Rc;
use std::time::Duration;

use kernels::backend::Backend;

use crate::batch::{NO_TOKEN, SeqId};
use crate::error::Error;
use crate::metrics::SpeculatorTally;
use crate::sample::Distribution;

use super::cost::{Clock, Monotonic};
use super::pace::{Pace, Round};
use super::{Committed, DraftRequest, Policy, SpecType, Speculator, TargetPass};

/// A speculator that failed, and why.
#[derive(Debug)]
pub struct Failure {
    /// Which.
    pub kind: SpecType,
    /// Why.
    pub error: Error,
}

/// The speculators of a run, in the order in which they are asked.
pub(super) struct Drafters<B: Backend> {
    active: Vec<Drafter<B>>,
    failed: Vec<Drafter<B>>,
    failures: Vec<Failure>,
    policy: Policy,
    clock: Rc<dyn Clock>,
    /// How long drafts are, if not as long as can be.
    pace: Option<Pace>,
    /// Time that all of them took since the last round, and how much of it for drafts.
    spent: Duration,
    drafting: Duration,
}

struct Drafter<B: Backend> {
    speculator: Box<dyn Speculator<B>>,
    tally: SpeculatorTally,
}

/// What is checked behind a sequence's newest token; empty for plain decoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) by: Option<SpecType>,
    pub(super) tokens: Vec<u32>,
    /// What they were drawn from; empty if they were not.
    pub(super) guesses: Vec<Distribution>,
    /// Accepted tokens, once the draft is verified.
    pub(super) n_accepted: usize,
}

impl Draft {
    /// Makes it that of plain decoding.
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

    /// Lets costs, as this clock tells them, choose how long drafts are.
    pub(super) fn set_pace(&mut self, clock: Rc<dyn Clock>) {
        (self.clock, self.pace) = (clock, Some(Pace::default()));
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// What a round of `n_seq` sequences came to, whose pass over `width` tokens took so long.
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

    /// Forgets the time spent on a prompt, which is no part of a round.
    pub(super) fn prompt_read(&mut self) {
        self.spent = Duration::ZERO;
    }

    /// That all of them have read all that is being written.
    pub(super) fn caught_up(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.caught_up();
        }
    }

    /// Those that failed since the last call.
    pub(super) fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }

    /// How each fared.
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

    /// Takes a sequence back to its first `len` tokens; returns how many of them no speculator needs to
    /// see again.
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

    /// Makes a sequence the beginning of another, `len` tokens of it; returns how many of them no
    /// speculator needs to see.
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

    /// A sequence's pass over a draft of `n_drafted` tokens was verified.
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

    /// Whether there is none, or none any more.
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// A draft for each sequence that wants one; they are empty on entry. A speculator drafts no
    /// more than a request's `n_max`, nor than its own.
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
                    // The text may have places without a token, and a draft taken from it as well.
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

    /// Takes a step with every speculator and counts its time; one that fails takes no more.
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
