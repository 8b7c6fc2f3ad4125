//! [`Engine`]: the thread that decodes. It runs all jobs in one target pass per step; a job joins when
//! a slot is free and leaves when its text ends or its client is gone.
//!
//! The logits of a text do not depend on the rest of the batch, so neither do its tokens.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernels::backend::Backend;
use runner::hash::LogitsHash;
use runner::sample::Sampler;
use runner::speculate::{
    Completion, DecodeConfig, Driver, Failure, PromptLogits, Proof, Request, Stop, TextConfig,
    TokenEvent, Verification,
};
use runner::tokenizer::{ControlText, TextStream, Tokenizer};
use schemas::report::Timings;

use crate::job::{Done, Event, Finish, GeneratedToken, Job, TokenLogprob};
use crate::logprobs::token_logprob;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::slots::{SlotState, Slots};
use crate::stop_strings::StopStrings;

/// State shared by the engine and the handlers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    pub(crate) slots: Slots,
    pub(crate) metrics: Metrics,
    /// Running jobs must end now.
    pub(crate) is_aborted: AtomicBool,
}

/// Decodes jobs until the queue is closed and empty.
pub(crate) struct Engine<'a, B: Backend> {
    driver: Driver<B>,
    tokenizer: &'a Tokenizer,
    shared: &'a Shared,
    /// The job of each slot.
    active: Vec<Option<Active<'a>>>,
    /// Step at which each slot was last used.
    last_used: Vec<u64>,
    n_steps: u64,
    n_jobs: usize,
}

/// A job in a slot.
struct Active<'a> {
    job: Job,
    /// Number of the job in the driver's events.
    number: usize,
    text: TextStream<'a>,
    stops: StopStrings,
    /// The stop string that was found.
    word: Option<String>,
    /// Log-probabilities of the prompt's tokens, collected while it is evaluated.
    prompt_logprobs: Vec<Option<TokenLogprob>>,
    hash: LogitsHash,
    n_tokens: usize,
}

impl<'a> Active<'a> {
    fn new(job: Job, number: usize, tokenizer: &'a Tokenizer) -> Active<'a> {
        let prompt_logprobs = match job.params.prompt_probs {
            true => vec![None],
            false => Vec::new(),
        };
        Active {
            number,
            text: tokenizer.stream(ControlText::Skip),
            stops: StopStrings::new(&job.params.stop),
            word: None,
            prompt_logprobs,
            hash: LogitsHash::new(),
            n_tokens: 0,
            job,
        }
    }

    fn send(&self, event: Event) {
        // The client may be gone; the engine notices before the next step.
        let _ = self.job.events.send((self.job.index, event));
    }

    /// Adds the log-probability of the prompt token that follows a position.
    fn prompt_row(&mut self, position: usize, row: &[f32]) {
        let Some(&next) = self.job.prompt.get(position + 1) else {
            return;
        };
        let n_top = self.job.params.n_probs.unwrap_or(0);
        let logprob = token_logprob(row, next, n_top);
        self.prompt_logprobs.push(Some(logprob));
    }

    fn token(&mut self, token: u32, row: Option<&[f32]>, is_end: bool) {
        // Tokens that the same step accepted after a stop string are not part of the text.
        if self.word.is_some() {
            return;
        }
        self.n_tokens += 1;
        let params = &self.job.params;
        if let (true, Some(row)) = (params.logits_hash, row) {
            self.hash.update(row);
        }
        let n_top = params.n_probs.filter(|_| !is_end || params.ignore_eos);
        let logprob = n_top.zip(row);
        let logprob = logprob.map(|(n_top, row)| token_logprob(row, token, n_top));
        let piece = match is_end && !params.ignore_eos {
            true => String::new(),
            false => self.text.push(token),
        };
        let piece = self.stops.push(&piece);
        self.word = piece.found;
        self.send(Event::Token(GeneratedToken {
            id: token,
            text: piece.text,
            logprob,
        }));
    }

    /// Reports the end of the text.
    fn finish(self, completion: &Completion, metrics: &Metrics) {
        let finish = match (self.word.clone(), completion.stop) {
            (Some(word), _) => Finish::Word(word),
            (None, Stop::EndOfText) => Finish::EndOfText,
            (None, Stop::Context) => Finish::Context,
            (None, Stop::Length | Stop::Interrupted) => Finish::Length,
        };
        let tally = &completion.tally;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let timings = Timings {
            cache_n: tally.n_reused,
            prompt_n: (self.job.prompt.len() as u64).saturating_sub(tally.n_reused),
            prompt_ms: ms(tally.prompt),
            predicted_n: self.n_tokens as u64,
            predicted_ms: ms(tally.elapsed),
            draft_n: tally.n_drafted(),
            draft_n_accepted: tally.n_accepted(),
            ..Timings::default()
        };
        let by_draft_position: Vec<[u64; 2]> = tally
            .by_position
            .iter()
            .map(|counts| [counts.n_drafted, counts.n_accepted])
            .collect();
        let held = match self.word {
            Some(_) => String::new(),
            None => {
                let mut stops = self.stops.clone();
                let piece = stops.push(&self.text.clone().finish());
                piece.text + &stops.finish()
            }
        };
        let done = Done {
            text: held,
            finish,
            timings: timings.with_rates(),
            n_drafts: by_draft_position.first().map_or(0, |[drafted, _]| *drafted),
            by_draft_position,
            logits_hash: self.job.params.logits_hash.then(|| self.hash.to_string()),
        };
        metrics.finished(&done);
        self.send(Event::Done(Box::new(done)));
    }
}

impl<'a, B: Backend> Engine<'a, B> {
    pub(crate) fn new(
        driver: Driver<B>,
        tokenizer: &'a Tokenizer,
        shared: &'a Shared,
    ) -> Engine<'a, B> {
        let n_slots = driver.n_seq();
        Engine {
            driver,
            tokenizer,
            shared,
            active: (0..n_slots).map(|_| None).collect(),
            last_used: vec![0; n_slots],
            n_steps: 0,
            n_jobs: 0,
        }
    }

    /// Runs until the queue is closed and no job is left. Returns false if decoding panicked; a new
    /// engine must then be made, as the caches may be inconsistent.
    pub(crate) fn run(&mut self) -> bool {
        let result = catch_unwind(AssertUnwindSafe(|| while self.step() {}));
        if result.is_err() {
            for slot in 0..self.active.len() {
                self.fail(
                    slot,
                    "decoding failed unexpectedly; the server log has details",
                );
            }
        }
        result.is_ok()
    }

    /// Admits jobs, runs one pass and reports its tokens. Returns false at the end.
    fn step(&mut self) -> bool {
        self.n_steps += 1;
        self.cancel();
        if self.shared.is_aborted.load(Ordering::Relaxed) {
            for slot in 0..self.active.len() {
                self.fail(slot, "the server is shutting down");
            }
            return false;
        }
        loop {
            let free: Vec<bool> = self.active.iter().map(Option::is_none).collect();
            if !free.contains(&true) {
                break;
            }
            let is_idle = free.iter().all(|&free| free);
            let can_run = |job: &Job| job.params.id_slot.is_none_or(|slot| free[slot]);
            match self.shared.queue.pop(is_idle, can_run) {
                Some(job) => self.start(job),
                None if is_idle => return !self.shared.queue.is_closed(),
                None => break,
            }
        }
        if self.active.iter().all(Option::is_none) {
            return true;
        }
        let n_busy = self.active.iter().flatten().count();
        self.shared.metrics.stepped(n_busy);
        // The settings of running texts are those that they joined with.
        let unused = TextConfig::new(Sampler::GREEDY);
        let result = self.decode(unused, |driver, config| driver.round(config).map(|_| ()));
        if let Err(error) = result {
            let message = error.to_string();
            (0..self.active.len()).for_each(|slot| self.fail(slot, &message));
        }
        self.finish();
        true
    }

    /// Frees the slots of jobs whose client is gone.
    fn cancel(&mut self) {
        for slot in 0..self.active.len() {
            let active = self.active[slot].as_ref();
            if active.is_some_and(|active| active.job.events.is_closed()) {
                self.driver.leave(slot);
                self.active[slot] = None;
                self.shared.metrics.cancelled();
                self.shared.slots.set(slot, SlotState::Idle);
            }
        }
    }

    /// Evaluates the prompt of a job in a free slot and chooses its first token.
    fn start(&mut self, job: Job) {
        let slot = self.slot_for(&job);
        let number = self.n_jobs;
        self.n_jobs += 1;
        self.last_used[slot] = self.n_steps;
        let params = &job.params;
        let state = SlotState::Busy {
            job: number,
            n_prompt: job.prompt.len(),
        };
        self.shared.slots.set(slot, state);
        let n_predict = params.n_predict.unwrap_or(usize::MAX);
        let request = Request::new(number.to_string(), job.prompt.to_vec(), n_predict);
        let sampler = Sampler::new(params.sample);
        let text = sampler.map(|sampler| TextConfig {
            sampler,
            verification: Verification::Match,
            proof: Proof::None,
            stream: Some(job.stream),
            n_draft_max: params.n_draft_max,
            ignore_end: params.ignore_eos,
            reuse_cache: params.cache_prompt,
            logits: params.n_probs.is_some() || params.logits_hash,
            prompt_logits: params.prompt_probs,
        });
        self.active[slot] = Some(Active::new(job, number, self.tokenizer));
        let result = match text {
            Ok(text) => {
                let joined = self.decode(text, |driver, config| {
                    driver.join(slot, number, &request, config)
                });
                joined.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match (result, &mut self.active[slot]) {
            (Err(message), _) => self.fail(slot, &message),
            (Ok(()), Some(active)) => {
                let logprobs = std::mem::take(&mut active.prompt_logprobs);
                active.send(Event::Prompt { slot, logprobs });
            }
            (Ok(()), None) => {}
        }
        self.finish();
    }

    /// Returns the free slot whose cache shares the longest prefix with the prompt; of several the one
    /// that was not used for the longest time.
    fn slot_for(&self, job: &Job) -> usize {
        let free = (0..self.active.len()).filter(|&slot| self.active[slot].is_none());
        let free = free.filter(|&slot| job.params.id_slot.is_none_or(|wanted| wanted == slot));
        let rank = |&slot: &usize| {
            let n_shared = self.driver.n_shared(slot, &job.prompt);
            (n_shared, u64::MAX - self.last_used[slot])
        };
        free.max_by_key(rank).unwrap_or(0)
    }

    /// Runs a step of the driver with callbacks that pass its events on to the jobs.
    fn decode<T>(
        &mut self,
        text: TextConfig,
        step: impl FnOnce(&mut Driver<B>, &mut DecodeConfig<'_>) -> Result<T, runner::Error>,
    ) -> Result<T, runner::Error> {
        let tokenizer = self.tokenizer;
        let is_end = |token: u32| tokenizer.is_end_of_generation(token);
        let active = RefCell::new(&mut self.active);
        let with = |number: usize, act: &mut dyn FnMut(&mut Active<'_>)| {
            let mut active = active.borrow_mut();
            let job = active.iter_mut().flatten().find(|a| a.number == number);
            job.into_iter().for_each(act);
        };
        let mut on_token = |event: TokenEvent<'_>| {
            with(event.request, &mut |active| {
                active.token(event.token, event.logits, is_end(event.token))
            });
        };
        let mut on_prompt = |event: PromptLogits<'_>| {
            with(event.request, &mut |active| {
                active.prompt_row(event.position, event.logits)
            });
        };
        let metrics = &self.shared.metrics;
        step(
            &mut self.driver,
            &mut DecodeConfig {
                on_token: Some(&mut on_token),
                on_prompt_logits: Some(&mut on_prompt),
                on_failure: Some(&mut |failure: Failure| metrics.speculator_failed(&failure)),
                ..DecodeConfig::new(text, &is_end)
            },
        )
    }

    /// Moves out the jobs whose texts are complete.
    fn finish(&mut self) {
        for slot in 0..self.active.len() {
            let Some(active) = &self.active[slot] else {
                continue;
            };
            if active.word.is_none() && self.driver.left(slot) > 0 {
                continue;
            }
            let completion = self.driver.leave(slot).unwrap_or_default();
            if let Some(active) = self.active[slot].take() {
                active.finish(&completion, &self.shared.metrics);
            }
            self.shared.slots.set(slot, SlotState::Idle);
        }
    }

    /// Ends a job with an error.
    fn fail(&mut self, slot: usize, message: &str) {
        if let Some(active) = self.active[slot].take() {
            active.send(Event::Failed(message.to_owned()));
            self.shared.metrics.failed();
        }
        self.driver.leave(slot);
        self.shared.slots.set(slot, SlotState::Idle);
    }
}
