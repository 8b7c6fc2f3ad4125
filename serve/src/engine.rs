//! [`Engine`]: the thread that decodes. It runs all jobs in one target pass per step; a job joins when
//! a slot is free and leaves when its text ends or its client is gone.
//!
//! The logits of a text do not depend on the rest of the batch, so neither do its tokens.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernels::backend::Backend;
use runner::context::N_BATCH;
use runner::hash::LogitsHash;
use runner::sample::Sampler;
use runner::speculate::{
    Completion, DecodeConfig, Driver, Failure, PromptLogits, Proof, Request, Stop, TextConfig,
    TokenEvent, Verification,
};
use runner::tally::Tally;
use runner::tokenizer::{ControlText, TextStream, Tokenizer};

use crate::job::{Done, Event, Finish, GeneratedToken, Job, TokenLogprob};
use crate::logprobs::token_logprob;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::slots::{SlotState, Slots};
use crate::stop_strings::StopStrings;

/// Maximum number of prompt tokens that are evaluated between two steps of the texts being decoded.
const N_PREFILL: usize = 128;

/// State shared by the engine and the handlers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    pub(crate) slots: Slots,
    pub(crate) metrics: Metrics,
    /// Running jobs must end now.
    is_aborted: AtomicBool,
}

impl Shared {
    pub(crate) fn new(max_queue: usize, n_slots: usize) -> Shared {
        Shared {
            queue: Queue::new(max_queue),
            slots: Slots::new(n_slots),
            metrics: Metrics::default(),
            is_aborted: AtomicBool::new(false),
        }
    }

    /// Ends all jobs, waiting or running.
    pub(crate) fn abort(&self) {
        self.queue.close();
        self.queue.clear();
        self.is_aborted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Relaxed)
    }
}

/// Decodes jobs until the queue is closed and empty.
pub(crate) struct Engine<'a, B: Backend> {
    driver: Driver<B>,
    tokenizer: &'a Tokenizer,
    shared: &'a Shared,
    /// Reports a problem to the operator of the server.
    warn: fn(&str),
    /// The job of each slot.
    active: Vec<Option<Active<'a>>>,
    /// The slot whose prompt is being evaluated. Others wait for their turn, so that they can share its
    /// prefix.
    prefilling: Option<usize>,
    /// Step at which each slot was last used.
    last_used: Vec<u64>,
    n_steps: u64,
    n_jobs: usize,
}

/// A job in a slot.
struct Active<'a> {
    job: Job,
    slot: usize,
    /// Number of the job in the driver's events.
    number: usize,
    /// The client was told that the prompt is evaluated.
    has_begun: bool,
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
    fn new(job: Job, slot: usize, number: usize, tokenizer: &'a Tokenizer) -> Active<'a> {
        let prompt_logprobs = match job.params.prompt_probs {
            true => vec![None],
            false => Vec::new(),
        };
        Active {
            slot,
            number,
            has_begun: false,
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

    /// Reports that the prompt is evaluated, before the first token or the end.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            let slot = self.slot;
            self.send(Event::Prompt { slot, logprobs });
        }
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
        self.begin();
        self.n_tokens += 1;
        let params = &self.job.params;
        if let (true, Some(row)) = (params.logits_hash, row) {
            self.hash.update(row);
        }
        let logprob = params.n_probs.zip(row);
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
    fn finish(mut self, completion: Completion, metrics: &Metrics) {
        self.begin();
        let finish = match (self.word.clone(), completion.stop) {
            (Some(word), _) => Finish::Word(word),
            (None, Stop::EndOfText) => Finish::EndOfText,
            (None, Stop::Context) => Finish::Context,
            (None, Stop::Length | Stop::Interrupted) => Finish::Length,
        };
        let tally = Tally {
            n_tokens: self.n_tokens as u64,
            ..completion.tally
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
            timings: tally.timings(self.job.prompt.len()),
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
        warn: fn(&str),
    ) -> Engine<'a, B> {
        let n_slots = driver.n_seq();
        Engine {
            driver,
            tokenizer,
            shared,
            warn,
            active: (0..n_slots).map(|_| None).collect(),
            prefilling: None,
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
            self.fail_all("decoding failed unexpectedly; the server log has details");
        }
        result.is_ok()
    }

    /// Evaluates some prompt tokens, runs one pass over the texts being decoded and reports their tokens.
    /// Returns false at the end.
    fn step(&mut self) -> bool {
        self.n_steps += 1;
        self.cancel();
        if self.shared.is_aborted() {
            self.fail_all("the server is shutting down");
            return false;
        }
        let mut n_left = match self.n_decoding() {
            0 => N_BATCH,
            _ => N_PREFILL,
        };
        while n_left > 0 {
            let Some(slot) = self.prefilling.or_else(|| self.admit()) else {
                break;
            };
            n_left -= self.prefill(slot, n_left);
        }
        if self.active.iter().all(Option::is_none) {
            return !self.shared.queue.is_closed();
        }
        let n_decoding = self.n_decoding();
        if n_decoding > 0 {
            self.shared.metrics.stepped(n_decoding);
            let result = self.decode(|driver, config| driver.round(config));
            if let Err(error) = result {
                self.fail_all(&error.to_string());
            }
            self.finish();
        }
        true
    }

    /// Returns the number of texts being decoded.
    fn n_decoding(&self) -> usize {
        let n_active = self.active.iter().flatten().count();
        n_active - usize::from(self.prefilling.is_some())
    }

    /// Frees the slots of jobs whose client is gone.
    fn cancel(&mut self) {
        for slot in 0..self.active.len() {
            let active = self.active[slot].as_ref();
            if active.is_some_and(|active| active.job.events.is_closed()) {
                self.free(slot);
                self.shared.metrics.cancelled();
            }
        }
    }

    /// Empties a slot. Returns its job and text.
    fn free(&mut self, slot: usize) -> Option<(Active<'a>, Completion)> {
        self.prefilling = self.prefilling.filter(|&busy| busy != slot);
        let completion = self.driver.leave(slot).unwrap_or_default();
        self.shared.slots.set(slot, SlotState::Idle);
        Some((self.active[slot].take()?, completion))
    }

    /// Starts the next job in a free slot and returns the slot. Waits for a job if no slot is in use.
    fn admit(&mut self) -> Option<usize> {
        loop {
            let free: Vec<bool> = self.active.iter().map(Option::is_none).collect();
            let is_idle = free.iter().all(|&free| free);
            let can_run = |job: &Job| match job.params.id_slot {
                Some(slot) => free[slot],
                None => free.contains(&true),
            };
            let job = self.shared.queue.pop(is_idle, can_run)?;
            let slot = self.slot_for(&job);
            match self.start(slot, job) {
                Ok(()) => return Some(slot),
                Err(message) => self.fail(slot, &message),
            }
        }
    }

    /// Starts a job in a free slot; its prompt is evaluated by [`Engine::prefill`].
    fn start(&mut self, slot: usize, job: Job) -> Result<(), String> {
        let number = self.n_jobs;
        self.n_jobs += 1;
        self.last_used[slot] = self.n_steps;
        let state = SlotState::Busy {
            job: number,
            n_prompt: job.prompt.len(),
        };
        self.shared.slots.set(slot, state);
        let (params, stream) = (Arc::clone(&job.params), job.stream);
        let n_predict = params.n_predict.unwrap_or(usize::MAX);
        let request = Request::new(number.to_string(), job.prompt.to_vec(), n_predict);
        self.active[slot] = Some(Active::new(job, slot, number, self.tokenizer));
        let text = TextConfig {
            sampler: Sampler::new(params.sample).map_err(|error| error.to_string())?,
            verification: Verification::Match,
            proof: Proof::None,
            stream: Some(stream),
            n_draft_max: params.n_draft_max,
            ignore_end: params.ignore_eos,
            reuse_cache: params.cache_prompt,
            logits: params.n_probs.is_some() || params.logits_hash,
            prompt_logits: params.prompt_probs,
        };
        let started = self.driver.start(slot, number, &request, text);
        started.map_err(|error| error.to_string())?;
        self.prefilling = Some(slot);
        Ok(())
    }

    /// Evaluates up to `n_max` more tokens of a prompt, at least one. Returns `n_max` if the prompt has
    /// more, else their number.
    fn prefill(&mut self, slot: usize, n_max: usize) -> usize {
        let n_before = self.driver.n_prompt_left(slot);
        match self.decode(|driver, config| driver.prefill(slot, n_max, config)) {
            Err(error) => self.fail(slot, &error.to_string()),
            Ok(0) => {
                self.prefilling = None;
                self.finish();
            }
            Ok(_) => {}
        }
        n_before.clamp(1, n_max)
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
        let warn = self.warn;
        let mut on_failure = |failure: Failure| {
            let (name, error) = (failure.kind.name(), &failure.error);
            warn(&format!("{name} failed and is disabled: {error}"));
        };
        // Texts have the settings that they started with.
        let unused = TextConfig::new(Sampler::GREEDY);
        step(
            &mut self.driver,
            &mut DecodeConfig {
                on_token: Some(&mut on_token),
                on_prompt_logits: Some(&mut on_prompt),
                on_failure: Some(&mut on_failure),
                ..DecodeConfig::new(unused, &is_end)
            },
        )
    }

    /// Moves out the jobs whose texts are complete.
    fn finish(&mut self) {
        for slot in 0..self.active.len() {
            let Some(active) = &self.active[slot] else {
                continue;
            };
            let is_complete = active.word.is_some() || self.driver.left(slot) == 0;
            if is_complete
                && self.prefilling != Some(slot)
                && let Some((active, completion)) = self.free(slot)
            {
                active.finish(completion, &self.shared.metrics);
            }
        }
    }

    /// Ends a job with an error.
    fn fail(&mut self, slot: usize, message: &str) {
        if let Some((active, _)) = self.free(slot) {
            active.send(Event::Failed(message.to_owned()));
            self.shared.metrics.failed();
        }
    }

    fn fail_all(&mut self, message: &str) {
        (0..self.active.len()).for_each(|slot| self.fail(slot, message));
    }
}
