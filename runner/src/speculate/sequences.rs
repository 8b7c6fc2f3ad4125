//! Sequences of a [`Driver`]: they join with a prompt, are rolled back, and leave, at any time
//! between two rounds. Every speculator is notified.

use std::ops::Range;
use std::time::Instant;

use kernels::backend::Backend;

use crate::batch::{Batch, NO_TOKEN, Outputs, SeqId, Text};
use crate::error::Error;
use crate::sample::Draw;
use crate::tally::Tally;

use super::output_rows::OutputKind;
use super::{
    Choice, Completion, DecodeConfig, Driver, PromptLogits, Proof, Request, Stop, TextConfig,
    TokenEvent,
};
use crate::hash::LogitsHash;

/// A prefix is copied from another sequence if it is at least this many tokens longer than the one
/// shared with the sequence's own text. Speculators that read hidden states can continue at every
/// 64th position.
const MIN_SHARED: usize = 64;

/// Returns the length of the shortest prefix that the prompt shares with following prompts, among
/// those of at least [`MIN_SHARED`] tokens; 0 if there is none.
fn shared_prefix_len(prompt: &Text, next: &[Request]) -> usize {
    let wanted = prompt.slice(0..prompt.len() - 1);
    let shared = next.iter().map(|next| {
        let next = next.prompt();
        next.split_at(next.len() - 1).0.n_shared(wanted)
    });
    shared.filter(|&n| n >= MIN_SHARED).min().unwrap_or(0)
}

/// A sequence being generated.
pub(super) struct Slot {
    /// Index of the request.
    pub(super) request: usize,
    /// Length of the prompt.
    n_prompt: usize,
    /// The newest token, not in the caches yet.
    pub(super) last: u32,
    /// Tokens that may still be generated.
    pub(super) left: usize,
    started: Instant,
    pub(super) config: TextConfig,
    pub(super) completion: Completion,
    /// The prompt, until it is evaluated.
    prompt: Option<Prompt>,
}

/// A prompt that is being evaluated.
struct Prompt {
    text: Text,
    /// Number of its tokens in the caches.
    at: usize,
    /// A pass ends at this position, so that the state there can be shared with other sequences; 0 for
    /// none.
    pause: usize,
}

impl Slot {
    /// True if the prompt is evaluated and tokens are left to generate.
    pub(super) fn is_decoding(&self) -> bool {
        self.left > 0 && self.prompt.is_none()
    }

    /// Returns the random stream of the text.
    pub(super) fn stream(&self) -> u64 {
        self.config.stream.unwrap_or(self.request as u64)
    }
}

impl<B: Backend> Driver<B> {
    /// Starts to generate after a prompt and chooses the first token. The previous completion of
    /// the sequence is dropped. A prefix that the prompt shares with the text in the caches, of
    /// this sequence or another, is not evaluated again.
    ///
    /// `number` is the index of the request in events and its random stream, so a text does not
    /// depend on the sequence that generates it.
    ///
    /// # Errors
    /// The prompt is empty, out of range or too long, or logits have no largest element.
    pub fn join(
        &mut self,
        seq: SeqId,
        number: usize,
        request: &Request,
        config: &mut DecodeConfig<'_>,
    ) -> Result<(), Error> {
        self.join_before(seq, number, request, &[], config)
    }

    /// Joins as [`Driver::join`] does; `next` are the requests that will follow.
    pub(super) fn join_before(
        &mut self,
        seq: SeqId,
        number: usize,
        request: &Request,
        next: &[Request],
        config: &mut DecodeConfig<'_>,
    ) -> Result<(), Error> {
        self.start_before(seq, number, request, next, config.text)?;
        while self.prefill(seq, usize::MAX, config)? > 0 {}
        Ok(())
    }

    /// Starts to generate after a prompt, as [`Driver::join`] does, but leaves the evaluation of the prompt
    /// to [`Driver::prefill`]. Until then, rounds skip the sequence. The result does not depend on the
    /// pieces in which the prompt is evaluated, or on rounds between them.
    ///
    /// # Errors
    /// The prompt is empty, out of range or too long.
    pub fn start(
        &mut self,
        seq: SeqId,
        number: usize,
        request: &Request,
        text: TextConfig,
    ) -> Result<(), Error> {
        self.start_before(seq, number, request, &[], text)
    }

    fn start_before(
        &mut self,
        seq: SeqId,
        number: usize,
        request: &Request,
        next: &[Request],
        config: TextConfig,
    ) -> Result<(), Error> {
        self.check(request)?;
        self.slots[seq] = None;
        let n_prompt = request.tokens.len();
        let n_ctx = self.target.config().cache.n_ctx;
        let left = request.n_predict.min(n_ctx - n_prompt);
        let mut prompt = Text::with_capacity(n_prompt + left);
        prompt.extend(request.prompt());
        let pause = match self.target.has_states() && !config.prompt_logits {
            true => shared_prefix_len(&prompt, &next[..next.len().min(self.slots.len())]),
            false => 0,
        };
        let started = Instant::now();
        let n_reused = match config.reuse_cache && !config.prompt_logits {
            true => self.reuse(seq, &prompt),
            false => self.keep(seq, 0),
        };
        let stop = match left < request.n_predict {
            true => Stop::Context,
            false => Stop::Length,
        };
        self.slots[seq] = Some(Slot {
            request: number,
            n_prompt,
            last: 0,
            left,
            started,
            config,
            completion: Completion {
                stop,
                tally: Tally {
                    n_reused: n_reused as u64,
                    prompt: started.elapsed(),
                    ..Tally::default()
                },
                ..Completion::with_capacity(left, config.proof)
            },
            prompt: Some(Prompt {
                text: prompt,
                at: n_reused,
                pause,
            }),
        });
        Ok(())
    }

    /// Evaluates up to `n_max` more tokens of a sequence's prompt, in one pass. The pass with the last of
    /// them chooses the first token of the text. Returns the number of prompt tokens left to evaluate.
    ///
    /// # Errors
    /// Logits have no largest element.
    pub fn prefill(
        &mut self,
        seq: SeqId,
        n_max: usize,
        config: &mut DecodeConfig<'_>,
    ) -> Result<usize, Error> {
        let Some(mut slot) = self.slots[seq].take_if(|slot| slot.prompt.is_some()) else {
            return Ok(0);
        };
        let Some(mut prompt) = slot.prompt.take() else {
            return Ok(0);
        };
        let started = Instant::now();
        let len = prompt.text.len();
        let stop = match prompt.at < prompt.pause {
            true => prompt.pause,
            false => len,
        };
        let n_max = n_max.clamp(1, self.target.config().n_batch);
        let piece = prompt.at..stop.min(prompt.at + n_max);
        let wanted = OutputKind::of([&slot.config]);
        let outputs = match piece.end == len && !slot.config.prompt_logits {
            true => Outputs::Last,
            false => Outputs::None,
        };
        self.evaluate(seq, &prompt.text, piece.clone(), outputs, wanted);
        if slot.config.prompt_logits {
            self.report_prompt_logits(slot.request, piece.clone(), len, config);
        }
        self.speculators.discard_prompt_time();
        prompt.at = piece.end;
        if prompt.at < len {
            slot.completion.tally.prompt += started.elapsed();
            slot.prompt = Some(prompt);
            self.slots[seq] = Some(slot);
            return Ok(len - piece.end);
        }
        self.begin(seq, prompt.text);
        self.report_failures(config);
        slot.completion.tally.prompt += started.elapsed();
        slot.started = Instant::now();
        if slot.left > 0 {
            let draw = Draw {
                stream: slot.stream(),
                position: len as u64,
            };
            let rows = wanted.rows(&self.target);
            let token = rows.sample(0, &slot.config.sampler, draw)?;
            slot.commit([(token, rows.logits(0))], config);
        }
        self.slots[seq] = Some(slot);
        Ok(0)
    }

    /// Rolls a sequence in progress back to the first `len` tokens of its text (prompt included, at
    /// least one) and continues from there for up to `n_predict` tokens.
    ///
    /// # Errors
    /// There is no such text, or its last token is an embedding, after which no token can be
    /// chosen.
    pub fn truncate(
        &mut self,
        seq: SeqId,
        len: usize,
        n_predict: usize,
        config: &mut DecodeConfig<'_>,
    ) -> Result<(), Error> {
        let error = |have| Error::NoSuchText { seq, len, have };
        let slot = self.slots[seq].as_mut();
        let slot = slot.filter(|slot| slot.prompt.is_none());
        let slot = slot.ok_or(error(0))?;
        let text = &self.texts[seq];
        let have = slot.n_prompt + slot.completion.tokens.len();
        if len == 0 || len > have {
            return Err(error(have));
        }
        slot.last = match text.tokens.get(len - 1) {
            Some(&NO_TOKEN) => return Err(error(have)),
            Some(&token) => token,
            None => slot.last,
        };
        let n_written = len.saturating_sub(slot.n_prompt);
        slot.n_prompt = slot.n_prompt.min(len);
        slot.completion.tokens.truncate(n_written);
        slot.completion.hashes.truncate(n_written);
        slot.completion.choices.truncate(n_written);
        let n_ctx = self.target.config().cache.n_ctx;
        slot.left = n_predict.min(n_ctx - len);
        slot.completion.stop = match slot.left < n_predict {
            true => Stop::Context,
            false => Stop::Length,
        };
        let mut text = text.clone();
        text.truncate(len - 1);
        let mut at = self.keep(seq, len - 1);
        while at < text.len() {
            let end = text.len().min(at + self.target.config().n_batch);
            let kind = OutputKind::Likeliest;
            self.evaluate(seq, &text, at..end, Outputs::None, kind);
            at = end;
        }
        self.begin(seq, text);
        self.report_failures(config);
        Ok(())
    }

    /// Ends a sequence, finished or not; `None` if it is not in progress. Its text stays in the
    /// caches, for prompts with the same prefix.
    pub fn leave(&mut self, seq: SeqId) -> Option<Completion> {
        let slot = self.slots[seq].take()?;
        let mut completion = slot.completion;
        completion.tally.n_tokens = completion.tokens.len() as u64;
        completion.tally.elapsed = slot.started.elapsed();
        Some(completion)
    }

    /// Returns the generated tokens of a sequence; empty if it is not in progress.
    pub fn written(&self, seq: SeqId) -> &[u32] {
        let slot = self.slots[seq].as_ref();
        slot.map_or(&[], |slot| &slot.completion.tokens)
    }

    /// Returns the number of prompt tokens of a sequence left to evaluate; 0 if it is not in progress.
    pub fn n_prompt_left(&self, seq: SeqId) -> usize {
        let slot = self.slots[seq].as_ref();
        let prompt = slot.and_then(|slot| slot.prompt.as_ref());
        prompt.map_or(0, |prompt| prompt.text.len() - prompt.at)
    }

    /// Returns how many tokens a sequence may still generate; 0 if it is not in progress.
    pub fn left(&self, seq: SeqId) -> usize {
        self.slots[seq].as_ref().map_or(0, |slot| slot.left)
    }

    /// Keeps the longest prefix of a prompt that is in the caches of a sequence, its own or another's.
    /// Returns its length.
    fn reuse(&mut self, seq: SeqId, prompt: &Text) -> usize {
        // Logits require a pass over the last token at least.
        let most = prompt.slice(0..prompt.len() - 1);
        let n_shared = |text: &Text| text.whole().n_shared(most);
        let own = n_shared(&self.texts[seq]);
        let others = (0..self.texts.len()).filter(|&other| other != seq);
        let others = others.map(|other| (n_shared(&self.texts[other]), other));
        let shared = match others.max() {
            Some((n, from)) if n >= own + MIN_SHARED => {
                let kept = self.speculators.share(from, seq, n as u32);
                self.target.share(from, seq, kept);
                kept as usize
            }
            _ => own,
        };
        self.keep(seq, shared)
    }

    /// Keeps at most the first `len` tokens in the caches of a sequence: as many as no speculator has to
    /// process again. Returns their number. Other sequences cannot share them until [`Driver::begin`].
    pub(super) fn keep(&mut self, seq: SeqId, len: usize) -> usize {
        let kept = self.speculators.truncate(seq, len as u32);
        self.target.truncate(seq, kept);
        self.texts[seq] = Text::default();
        kept as usize
    }

    /// Evaluates a piece of a text, of which the caches hold all tokens before the piece.
    pub(super) fn evaluate(
        &mut self,
        seq: SeqId,
        text: &Text,
        piece: Range<usize>,
        outputs: Outputs,
        wanted: OutputKind,
    ) {
        let mut batch = Batch::default();
        batch.push_slice(seq, piece.start as u32, text.slice(piece), outputs);
        self.pass(&batch, wanted);
    }

    /// Passes the logits of the prompt's positions `piece`, which the last pass evaluated, to the caller.
    /// Logits of the last of the prompt's `len` tokens stay in the target, for the first token to be sampled
    /// from.
    fn report_prompt_logits(
        &mut self,
        request: usize,
        piece: Range<usize>,
        len: usize,
        config: &mut DecodeConfig<'_>,
    ) {
        let n_outputs = self.target.config().n_outputs;
        let mut at = piece.start;
        while at < piece.end {
            // The last token's are computed alone, so that they are the first row.
            let end = match len - 1 - at {
                0 => len,
                n => piece.end.min(at + n.min(n_outputs)),
            };
            let rows: Vec<usize> = (at - piece.start..end - piece.start).collect();
            self.target.compute_logits(&rows);
            let rows = OutputKind::Logits.rows(&self.target);
            if let Some(on_logits) = &mut config.on_prompt_logits {
                for (row, position) in (at..end).enumerate() {
                    let logits = rows.logits(row).unwrap_or_default();
                    on_logits(PromptLogits {
                        request,
                        position,
                        logits,
                    });
                }
            }
            at = end;
        }
    }

    /// Starts decoding after a text that is in the caches.
    pub(super) fn begin(&mut self, seq: SeqId, text: Text) {
        self.speculators.begin(seq, &text.tokens);
        self.speculators.discard_prompt_time();
        if self.unfinished().next().is_none() {
            self.speculators.caught_up();
        }
        self.texts[seq] = text;
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), Error> {
        let id = || format!("prompt {}", request.id);
        let hparams = &self.target.model().hparams;
        let n_vocab = hparams.n_vocab as usize;
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
        let n_rows = request.tokens.iter().filter(|&&t| t == NO_TOKEN).count();
        let width = hparams.n_embd as usize;
        let widths = request.embeddings.iter().map(|embedding| embedding.len());
        if n_rows != request.embeddings.len() || widths.clone().any(|found| found != width) {
            return Err(Error::Embeddings {
                id: id(),
                n_rows,
                found: widths.collect(),
                width,
            });
        }
        let mut positions = request.embeddings.iter().map(|e| e.position);
        if hparams.rope_sections.is_none() && positions.any(|position| position.is_some()) {
            return Err(Error::Positions {
                id: id(),
                arch: hparams.arch.name,
            });
        }
        let tokens = request.tokens.iter().filter(|&&token| token != NO_TOKEN);
        match tokens.copied().find(|&token| token as usize >= n_vocab) {
            Some(token) => Err(Error::TokenRange {
                id: id(),
                token,
                n_vocab,
            }),
            None => Ok(()),
        }
    }
}

impl Slot {
    /// Commits tokens up to the one that ends the text. Each comes with the logits it was chosen
    /// from, where a proof is kept.
    pub(super) fn commit<'a>(
        &mut self,
        tokens: impl IntoIterator<Item = (u32, Option<&'a [f32]>)>,
        config: &mut DecodeConfig<'_>,
    ) {
        for (token, logits) in tokens {
            self.completion.tokens.push(token);
            if let (Proof::Logits, Some(row)) = (self.config.proof, logits) {
                let mut hash = LogitsHash::new();
                hash.update(row);
                self.completion.hashes.push(hash);
                self.completion.choices.push(Choice::of(token, row));
            }
            self.left -= 1;
            self.last = token;
            if let Some(on_token) = &mut config.on_token {
                on_token(TokenEvent {
                    request: self.request,
                    token,
                    logits,
                });
            }
            if !self.config.ignore_end && (config.is_end)(token) {
                self.completion.stop = Stop::EndOfText;
                self.left = 0;
                return;
            }
        }
    }
}
