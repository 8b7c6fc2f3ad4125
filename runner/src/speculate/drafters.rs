//! [`Drafters`]: the speculators of a run, which of them is asked, and how each fares.
//!
//! One that fails is switched off, and the text goes on without it: what it would have drafted can
//! change only the speed.

use std::time::{Duration, Instant};

use kernels::backend::Backend;

use crate::batch::SeqId;
use crate::error::Error;
use crate::metrics::SpeculatorTally;
use crate::sample::Distribution;

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

    pub(super) fn process(&mut self, pass: &TargetPass<'_, B>) {
        self.each(
            |tally| &mut tally.process,
            |drafter| drafter.speculator.process(pass),
        );
    }

    /// A sequence's pass over a draft of `n_drafted` tokens was verified.
    pub(super) fn accept(&mut self, committed: Committed, n_drafted: usize) {
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

    /// A draft for each of `n_seq` sequences that want one. A speculator drafts no more than a
    /// request's `n_max`, nor than its own.
    pub(super) fn draft(&mut self, wanted: &[DraftRequest<'_>], n_seq: usize) -> Vec<Draft> {
        let mut drafts = vec![Draft::default(); n_seq];
        let mut expected = vec![0.0; n_seq];
        let policy = self.policy;
        self.each(
            |tally| &mut tally.drafting,
            |drafter| {
                let n_max = drafter.speculator.n_max();
                let is_open = |request: &&DraftRequest<'_>| {
                    policy == Policy::Best || drafts[request.seq].tokens.is_empty()
                };
                let mut requests: Vec<_> = wanted.iter().filter(is_open).cloned().collect();
                for request in &mut requests {
                    request.n_max = request.n_max.min(n_max);
                }
                requests.retain(|request| request.n_max > 0);
                if requests.is_empty() {
                    return Ok(());
                }
                drafter.tally.n_calls_draft += 1;
                drafter.speculator.draft(&mut requests)?;
                for request in requests {
                    let (mut tokens, guesses) = (request.draft, request.guesses);
                    tokens.truncate(request.n_max);
                    let gain = drafter.tally.expected(tokens.len());
                    if gain > expected[request.seq] {
                        expected[request.seq] = gain;
                        let by = Some(drafter.tally.kind);
                        drafts[request.seq] = Draft {
                            by,
                            tokens,
                            guesses,
                        };
                    }
                }
                Ok(())
            },
        );
        drafts
    }

    /// Takes a step with every speculator and counts its time; one that fails takes no more.
    fn each(
        &mut self,
        time: fn(&mut SpeculatorTally) -> &mut Duration,
        mut step: impl FnMut(&mut Drafter<B>) -> Result<(), Error>,
    ) {
        let mut i = 0;
        while let Some(drafter) = self.active.get_mut(i) {
            let started = Instant::now();
            let result = step(drafter);
            *time(&mut drafter.tally) += started.elapsed();
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
