//! [`SpeculatorSet`]: the speculators of a run, the choice between them, and their statistics.
//!
//! A speculator that fails is disabled and decoding continues without it: drafts affect only
//! the speed.

use std::rc::Rc;
use std::time::Duration;

use kernels::backend::Backend;

use crate::batch::{NO_TOKEN, SeqId};
use crate::context::Context;
use crate::error::Error;
use crate::sample::Distribution;
use crate::tally::SpeculatorTally;

use super::draft_length::{DraftLengthController, Round};
use super::latency_model::{Clock, Monotonic};
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
pub(super) struct SpeculatorSet<B: Backend> {
    active: Vec<Member<B>>,
    failed: Vec<Member<B>>,
    failures: Vec<Failure>,
    policy: Policy,
    clock: Rc<dyn Clock>,
    /// Chooses the draft length; `None` for the maximum.
    controller: Option<DraftLengthController>,
    /// Time that all speculators took since the last round, and the part of it spent on drafts.
    spent: Duration,
    drafting: Duration,
}

/// A speculator with its statistics.
struct Member<B: Backend> {
    speculator: Box<dyn Speculator<B>>,
    tally: SpeculatorTally,
}

impl<B: Backend> Member<B> {
    /// Returns the requests to draft for, limited to the speculator's draft length.
    fn requests<'a>(
        &self,
        open: &[&DraftRequest<'a>],
        controller: Option<&mut DraftLengthController>,
    ) -> Vec<DraftRequest<'a>> {
        let n_max = self.speculator.n_max();
        let n_max = match controller {
            Some(controller) => controller.length(self.tally.kind, open.len(), n_max),
            None => n_max,
        };
        let limited = open.iter().map(|&request| DraftRequest {
            n_max: request.n_max.min(n_max),
            ..request.clone()
        });
        limited.filter(|request| request.n_max > 0).collect()
    }

    /// Replaces a draft if more accepted tokens are expected of this one.
    fn keep_better(&self, request: DraftRequest<'_>, expected: &mut f64, draft: &mut Draft) {
        let mut tokens = request.draft;
        tokens.truncate(request.n_max);
        // A text can have positions without a token (embeddings), and so can a draft copied from
        // it.
        let is_token = |&&token: &&u32| token != NO_TOKEN;
        tokens.truncate(tokens.iter().take_while(is_token).count());
        let gain = self.tally.expected(tokens.len());
        if gain > *expected {
            *expected = gain;
            *draft = Draft {
                by: Some(self.tally.kind),
                tokens,
                distributions: request.distributions,
                n_accepted: 0,
            };
        }
    }
}

/// The draft to verify after a sequence's newest token; empty for plain decoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) by: Option<SpecType>,
    pub(super) tokens: Vec<u32>,
    /// The distribution of each token, if rejection sampling verifies them; else empty.
    pub(super) distributions: Vec<Distribution>,
    /// Accepted tokens, once the draft is verified.
    pub(super) n_accepted: usize,
}

impl Draft {
    /// Resets to plain decoding.
    pub(super) fn clear(&mut self) {
        self.by = None;
        self.tokens.clear();
        self.distributions.clear();
        self.n_accepted = 0;
    }
}

impl<B: Backend> SpeculatorSet<B> {
    pub(super) fn new(
        speculators: Vec<Box<dyn Speculator<B>>>,
        policy: Policy,
    ) -> SpeculatorSet<B> {
        let member = |speculator: Box<dyn Speculator<B>>| Member {
            tally: SpeculatorTally::new(speculator.kind()),
            speculator,
        };
        SpeculatorSet {
            active: speculators.into_iter().map(member).collect(),
            failed: Vec::new(),
            failures: Vec::new(),
            policy,
            clock: Rc::<Monotonic>::default(),
            controller: None,
            spent: Duration::ZERO,
            drafting: Duration::ZERO,
        }
    }

    /// Enables automatic draft lengths, from costs measured with this clock.
    pub(super) fn set_automatic_length(&mut self, clock: Rc<dyn Clock>) {
        (self.clock, self.controller) = (clock, Some(DraftLengthController::default()));
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Records a round of `n_seq` sequences whose target pass over `width` tokens took `pass`.
    pub(super) fn record_round(
        &mut self,
        n_seq: usize,
        width: usize,
        n_written: usize,
        pass: Duration,
    ) {
        let spent = std::mem::take(&mut self.spent);
        let drafting = std::mem::take(&mut self.drafting);
        if let Some(controller) = &mut self.controller {
            controller.record_round(Round {
                n_seq,
                width,
                n_written,
                pass: pass.as_secs_f64(),
                following: spent.saturating_sub(drafting).as_secs_f64(),
            });
        }
    }

    /// Discards the time spent on a prompt, which does not belong to a round.
    pub(super) fn discard_prompt_time(&mut self) {
        self.spent = Duration::ZERO;
    }

    /// Records that all speculators have evaluated all tokens of their sequences.
    pub(super) fn caught_up(&mut self) {
        if let Some(controller) = &mut self.controller {
            controller.caught_up();
        }
    }

    /// Returns the speculators that failed since the last call.
    pub(super) fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }

    /// The statistics of each speculator.
    pub(super) fn tallies(&self) -> impl Iterator<Item = &SpeculatorTally> {
        let all = self.active.iter().chain(&self.failed);
        all.map(|member| &member.tally)
    }

    pub(super) fn begin(&mut self, seq: SeqId, prompt: &[u32]) {
        self.each(
            |tally| &mut tally.begin,
            |member| {
                member.tally.n_calls_begin += 1;
                member.speculator.begin(seq, prompt)
            },
        );
    }

    /// Rolls a sequence back to its first `len` tokens. Returns how many of them no speculator has
    /// to process again.
    pub(super) fn truncate(&mut self, seq: SeqId, len: u32) -> u32 {
        let mut kept = len;
        self.each(
            |tally| &mut tally.accept,
            |member| {
                kept = kept.min(member.speculator.truncate(seq, len)?);
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
            |member| {
                kept = kept.min(member.speculator.share(from, to, len)?);
                Ok(())
            },
        );
        kept
    }

    pub(super) fn process(&mut self, pass: &TargetPass<'_, B>) {
        self.each(
            |tally| &mut tally.process,
            |member| member.speculator.process(pass),
        );
    }

    /// Records that a sequence's pass over a draft of `n_drafted` tokens was verified.
    pub(super) fn accept(&mut self, committed: Committed, n_drafted: usize) {
        if let (Some(controller), Some(by)) = (&mut self.controller, committed.by) {
            controller.verified(by, n_drafted, committed.n_accepted);
        }
        self.each(
            |tally| &mut tally.accept,
            |member| {
                if committed.by == Some(member.tally.kind) {
                    member.tally.n_calls_accept += 1;
                    member.tally.draft(n_drafted, committed.n_accepted);
                }
                member.speculator.accept(committed)
            },
        );
    }

    /// True if there are no speculators, or all have failed.
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Fills in a draft for each request; drafts are empty on entry. No draft is longer than the
    /// request's `n_max` or the speculator's own.
    pub(super) fn draft(
        &mut self,
        target: &mut Context<B>,
        wanted: &[DraftRequest<'_>],
        drafts: &mut [Draft],
    ) {
        let mut expected = vec![0.0; drafts.len()];
        let policy = self.policy;
        let mut controller = self.controller.take();
        let clock = Rc::clone(&self.clock);
        let mut drafting = Duration::ZERO;
        self.each(
            |tally| &mut tally.drafting,
            |member| {
                let is_open = |request: &&DraftRequest<'_>| {
                    policy == Policy::Best || drafts[request.seq].tokens.is_empty()
                };
                let open: Vec<_> = wanted.iter().filter(is_open).collect();
                let mut requests = member.requests(&open, controller.as_mut());
                if requests.is_empty() {
                    return Ok(());
                }
                member.tally.n_calls_draft += 1;
                let started = clock.now();
                member.speculator.draft_beside(target, &mut requests)?;
                let elapsed = clock.now() - started;
                drafting += elapsed;
                let longest = requests.iter().map(|request| request.draft.len()).max();
                if let (Some(controller), Some(n)) = (&mut controller, longest) {
                    let kind = member.tally.kind;
                    controller.drafted(kind, requests.len(), n, elapsed.as_secs_f64());
                }
                for request in requests {
                    let seq = request.seq;
                    member.keep_better(request, &mut expected[seq], &mut drafts[seq]);
                }
                Ok(())
            },
        );
        self.controller = controller;
        self.drafting += drafting;
    }

    /// Calls `step` for every speculator and adds up its time. A speculator that fails is disabled.
    fn each(
        &mut self,
        time: fn(&mut SpeculatorTally) -> &mut Duration,
        mut step: impl FnMut(&mut Member<B>) -> Result<(), Error>,
    ) {
        let mut i = 0;
        while let Some(member) = self.active.get_mut(i) {
            let started = self.clock.now();
            let result = step(member);
            let elapsed = self.clock.now() - started;
            *time(&mut member.tally) += elapsed;
            self.spent += elapsed;
            match result {
                Ok(()) => i += 1,
                Err(error) => {
                    let kind = member.tally.kind;
                    self.failures.push(Failure { kind, error });
                    self.failed.push(self.active.remove(i));
                }
            }
        }
    }
}
