//! [`Driver`]: the loop. Draft, one target pass over all sequences, accept, roll back.
//!
//! A sequence's token is chosen from the target's own logits, by the same sampler and the
//! same draw as without speculation ([`Verification::Match`]). Since those logits do not depend on what else is in the pass,
//! speculation cannot change a text.

use std::time::{Duration, Instant};

use kernels::backend::Backend;

use crate::batch::{Batch, Outputs, SeqId};
use crate::context::Context;
use crate::error::Error;
use crate::hash::LogitsHash;
use crate::metrics::Tally;
use crate::sample::{Draw, Sampler};

use super::accept::{Accepted, accept};
use super::drafters::{Draft, Drafters, Failure};
use super::{Committed, DraftRequest, Guessing, Policy, Speculator, TargetPass, Verification};

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names the prompt in messages.
    pub id: String,
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// Most tokens to write.
    pub n_predict: usize,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model ended it.
    EndOfText,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
}

/// A finished text.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The tokens behind the prompt.
    pub tokens: Vec<u32>,
    /// For each token the hash of the logits it was chosen from.
    pub hashes: Vec<LogitsHash>,
    /// For each token how clear a choice it was.
    pub choices: Vec<Choice>,
    /// Why it ended.
    pub stop: Stop,
    /// What it took.
    pub tally: Tally,
}

/// How clear the choice of a token was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Its logit.
    pub logit: f32,
    /// The best of all other tokens, and its logit; `None` in a vocabulary of one.
    pub runner_up: Option<(u32, f32)>,
}

impl Choice {
    fn of(token: u32, row: &[f32]) -> Choice {
        let others = (0..).zip(row).filter(|&(id, _)| id != token);
        let best = others.max_by(|(_, x), (_, y)| x.total_cmp(y));
        Choice {
            logit: row[token as usize],
            runner_up: best.map(|(id, &logit)| (id, logit)),
        }
    }
}

/// A token just committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenEvent {
    /// Index of the request.
    pub request: usize,
    /// The token.
    pub token: u32,
}

/// How to decode.
pub struct DecodeConfig<'a> {
    /// Chooses tokens.
    pub sampler: Sampler,
    /// How, where a draft has guessed.
    pub verification: Verification,
    /// Whether a token ends the text.
    pub is_end: &'a dyn Fn(u32) -> bool,
    /// Hears every committed token.
    pub on_token: &'a mut dyn FnMut(TokenEvent),
    /// Hears of a speculator that failed; the text goes on without it.
    pub on_failure: &'a mut dyn FnMut(&Failure),
}

/// A target, and the speculators that draft for it.
pub struct Driver<B: Backend> {
    target: Context<B>,
    drafters: Drafters<B>,
}

/// A sequence being written.
struct Slot {
    /// Index of the request.
    request: usize,
    /// Tokens in the caches.
    history: Vec<u32>,
    /// The newest token, not in the caches yet.
    last: u32,
    /// Tokens that may still be written.
    left: usize,
    started: Instant,
    completion: Completion,
}

impl<B: Backend> Driver<B> {
    /// The contexts of all have the same number of sequences.
    pub fn new(
        target: Context<B>,
        speculators: Vec<Box<dyn Speculator<B>>>,
        policy: Policy,
    ) -> Driver<B> {
        Driver {
            target,
            drafters: Drafters::new(speculators, policy),
        }
    }

    /// The target.
    pub fn target(&self) -> &Context<B> {
        &self.target
    }

    /// Continues all prompts, as many at once as the target has sequences; results in their order,
    /// and what all of them took together.
    ///
    /// # Errors
    /// A prompt is empty, out of range or too long, or logits have no largest element.
    pub fn decode(
        &mut self,
        requests: &[Request],
        config: &mut DecodeConfig<'_>,
    ) -> Result<(Vec<Completion>, Tally), Error> {
        requests
            .iter()
            .try_for_each(|request| self.check(request))?;
        let mut slots: Vec<Option<Slot>> = Vec::new();
        slots.resize_with(self.target.config().cache.n_seq, || None);
        let mut completions: Vec<Option<Completion>> = requests.iter().map(|_| None).collect();
        let mut next = requests.iter().enumerate();
        let mut total = Tally::default();
        loop {
            for (seq, slot) in slots.iter_mut().enumerate() {
                while slot.is_none() {
                    let Some((index, request)) = next.next() else {
                        break;
                    };
                    *slot = Some(self.prefill(seq, index, request, config)?);
                    finish(slot, &mut completions);
                }
            }
            if slots.iter().all(Option::is_none) {
                break;
            }
            total.elapsed += self.round(&mut slots, config)?;
            total.weight_bytes += self.target.model().pass_bytes as u64;
            slots
                .iter_mut()
                .for_each(|slot| finish(slot, &mut completions));
        }
        let completions: Vec<Completion> = completions
            .into_iter()
            .map(|completion| completion.expect("the loop ends when every request has finished"))
            .collect();
        completions
            .iter()
            .for_each(|completion| total.add_counts(&completion.tally));
        total.speculators = self.drafters.tallies().cloned().collect();
        Ok((completions, total))
    }

    fn check(&self, request: &Request) -> Result<(), Error> {
        let id = || format!("prompt {}", request.id);
        let n_vocab = self.target.model().hparams.n_vocab as usize;
        let (need, have) = (
            request.tokens.len() + request.n_predict.min(1),
            self.target.config().cache.n_ctx,
        );
        if request.tokens.is_empty() {
            return Err(Error::EmptyPrompt { id: id() });
        }
        if need > have {
            return Err(Error::ContextLength {
                id: id(),
                need,
                have,
            });
        }
        match request
            .tokens
            .iter()
            .find(|&&token| token as usize >= n_vocab)
        {
            Some(&token) => Err(Error::TokenRange {
                id: id(),
                token,
                n_vocab,
            }),
            None => Ok(()),
        }
    }

    /// Takes a prompt into the caches and chooses the first token.
    fn prefill(
        &mut self,
        seq: SeqId,
        index: usize,
        request: &Request,
        config: &mut DecodeConfig<'_>,
    ) -> Result<Slot, Error> {
        let prompt = &request.tokens;
        let n_batch = self.target.config().n_batch;
        self.target.truncate(seq, 0)?;
        let mut logits = Vec::new();
        for (i, chunk) in prompt.chunks(n_batch).enumerate() {
            let start = i * n_batch;
            let is_last = start + chunk.len() == prompt.len();
            let outputs = if is_last {
                Outputs::Last
            } else {
                Outputs::None
            };
            let mut batch = Batch::default();
            batch.push(seq, start as u32, chunk, outputs);
            logits = self.pass(&batch);
        }
        self.drafters.begin(seq, prompt);
        self.tell_failures(config);
        let n_ctx = self.target.config().cache.n_ctx;
        let (stop, tally) = (Stop::Length, Tally::default());
        let mut slot = Slot {
            request: index,
            history: prompt.clone(),
            last: 0,
            left: request.n_predict.min(n_ctx - prompt.len()),
            started: Instant::now(),
            completion: Completion {
                tokens: Vec::new(),
                hashes: Vec::new(),
                choices: Vec::new(),
                stop,
                tally,
            },
        };
        if slot.left < request.n_predict {
            slot.completion.stop = Stop::Context;
        }
        if slot.left > 0 {
            let draw = Draw {
                stream: index as u64,
                position: prompt.len() as u64,
            };
            let token = config.sampler.sample(&logits, draw)?;
            slot.commit(&[token], &[&logits], config);
        }
        Ok(slot)
    }

    /// Runs a batch on the target and shows it to every speculator.
    fn pass(&mut self, batch: &Batch) -> Vec<f32> {
        let logits = self.target.forward(batch, None);
        let pass = TargetPass {
            batch,
            hidden: self.target.hidden(),
            features: self.target.features(),
        };
        self.drafters.process(&pass);
        logits
    }

    fn tell_failures(&mut self, config: &mut DecodeConfig<'_>) {
        for failure in self.drafters.take_failures() {
            (config.on_failure)(&failure);
        }
    }

    /// One target pass for all sequences that are being written; returns its time.
    fn round(
        &mut self,
        slots: &mut [Option<Slot>],
        config: &mut DecodeConfig<'_>,
    ) -> Result<Duration, Error> {
        let started = Instant::now();
        let n_vocab = self.target.model().hparams.n_vocab as usize;
        let drafts = self.draft(slots, config);
        let mut batch = Batch::default();
        for (seq, slot) in writing(slots) {
            let start = slot.history.len() as u32;
            batch.push(seq, start, &[slot.last], Outputs::All);
            batch.push(seq, start + 1, &drafts[seq].tokens, Outputs::All);
        }
        let logits = self.pass(&batch);
        let mut rows = logits.chunks_exact(n_vocab);
        for (seq, slot) in writing(slots) {
            let Draft {
                by,
                tokens: draft,
                guesses,
            } = &drafts[seq];
            let own: Vec<&[f32]> = rows.by_ref().take(draft.len() + 1).collect();
            let start = slot.history.len() as u64 + 1;
            let choose = |row: usize| {
                let draw = Draw {
                    stream: slot.request as u64,
                    position: start + row as u64,
                };
                match guesses.get(row) {
                    None => config.sampler.sample(own[row], draw),
                    Some(guesses) => {
                        let (sampler, guess) = (&config.sampler, draft[row]);
                        sampler.accept_or_redraw(own[row], guess, guesses, draw)
                    }
                }
            };
            let Accepted { n_accepted, bonus } = accept(draft, choose, config.is_end)?;
            slot.completion.tally.pass(*by, draft.len(), n_accepted);
            slot.completion.tally.weight_bytes += self.target.model().pass_bytes as u64;
            slot.history.push(slot.last);
            slot.history.extend_from_slice(&draft[..n_accepted]);
            let len = slot.history.len() as u32;
            self.target.truncate(seq, len)?;
            let committed = Committed {
                seq,
                by: *by,
                n_accepted,
                len,
            };
            self.drafters.accept(committed, draft.len());
            let tokens = [&draft[..n_accepted], &[bonus]].concat();
            slot.commit(&tokens, &own, config);
        }
        self.tell_failures(config);
        Ok(started.elapsed())
    }

    /// A draft for each sequence.
    fn draft(&mut self, slots: &[Option<Slot>], config: &DecodeConfig<'_>) -> Vec<Draft> {
        let n_ctx = self.target.config().cache.n_ctx;
        let wanted = slots.iter().enumerate().filter_map(|(seq, slot)| {
            let slot = slot.as_ref()?;
            Some(DraftRequest {
                seq,
                history: &slot.history,
                last: slot.last,
                // The pass commits one token more than it accepts.
                n_max: (slot.left - 1).min(n_ctx - slot.history.len() - 1),
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
        self.drafters.draft(&wanted, slots.len())
    }
}

impl Slot {
    /// Writes tokens, each chosen from its row of logits, up to the one that ends the text.
    fn commit(&mut self, tokens: &[u32], rows: &[&[f32]], config: &mut DecodeConfig<'_>) {
        for (&token, row) in tokens.iter().zip(rows) {
            let mut hash = LogitsHash::new();
            hash.update(row);
            self.completion.tokens.push(token);
            self.completion.hashes.push(hash);
            self.completion.choices.push(Choice::of(token, row));
            self.left -= 1;
            self.last = token;
            (config.on_token)(TokenEvent {
                request: self.request,
                token,
            });
            if (config.is_end)(token) {
                self.completion.stop = Stop::EndOfText;
                self.left = 0;
                return;
            }
        }
    }
}

/// The sequences that are being written.
fn writing(slots: &mut [Option<Slot>]) -> impl Iterator<Item = (SeqId, &mut Slot)> {
    slots
        .iter_mut()
        .enumerate()
        .filter_map(|(seq, slot)| Some((seq, slot.as_mut()?)))
}

/// Moves a slot's text out once nothing is left to write.
fn finish(slot: &mut Option<Slot>, completions: &mut [Option<Completion>]) {
    if let Some(done) = slot.take_if(|slot| slot.left == 0) {
        let mut completion = done.completion;
        completion.tally.n_tokens = completion.tokens.len() as u64;
        completion.tally.elapsed = done.started.elapsed();
        completions[done.request] = Some(completion);
    }
}
