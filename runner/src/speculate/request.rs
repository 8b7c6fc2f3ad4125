//! Requests to a [`Driver`](super::Driver), and their results.

use crate::batch::{Embedding, SeqId, TextSlice};
use crate::cache::Rollback;
use crate::hash::LogitsHash;
use crate::sample::Sampler;
use crate::tally::Tally;

use super::{Failure, SpecType, Verification};

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the prompt in messages.
    pub id: String,
    /// The prompt's tokens; [`NO_TOKEN`](crate::batch::NO_TOKEN) for an embedding.
    pub tokens: Vec<u32>,
    /// The embeddings of the prompt, in order.
    pub embeddings: Vec<Embedding>,
    /// Maximum number of tokens to generate.
    pub n_predict: usize,
}

impl Request {
    /// Returns a request to continue a prompt of tokens.
    pub fn new(id: impl Into<String>, tokens: Vec<u32>, n_predict: usize) -> Request {
        Request {
            id: id.into(),
            tokens,
            embeddings: Vec::new(),
            n_predict,
        }
    }

    /// Returns the prompt.
    pub fn prompt(&self) -> TextSlice<'_> {
        TextSlice {
            tokens: &self.tokens,
            embeddings: &self.embeddings,
        }
    }
}

/// The reason why a text ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// An end-of-sequence token.
    EndOfText,
    /// The requested number of tokens was generated.
    #[default]
    Length,
    /// The context is full.
    Context,
    /// The caller stopped decoding.
    Interrupted,
}

/// A finished text.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// The hash of the logits each token was chosen from, under [`Proof::Logits`].
    pub hashes: Vec<LogitsHash>,
    /// The margin of each token's choice, under [`Proof::Logits`].
    pub choices: Vec<Choice>,
    /// Why the text ended.
    pub stop: Stop,
    /// Statistics.
    pub tally: Tally,
}

impl Completion {
    /// Returns the completion of a request that was not started.
    pub(super) fn interrupted() -> Completion {
        Completion {
            stop: Stop::Interrupted,
            ..Completion::default()
        }
    }

    /// Returns an empty completion with capacity for `n` tokens.
    pub(super) fn with_capacity(n: usize, proof: Proof) -> Completion {
        let n_proven = match proof {
            Proof::None => 0,
            Proof::Logits => n,
        };
        Completion {
            tokens: Vec::with_capacity(n),
            hashes: Vec::with_capacity(n_proven),
            choices: Vec::with_capacity(n_proven),
            ..Completion::default()
        }
    }
}

/// The margin by which a token was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Logit of the token.
    pub logit: f32,
    /// The best other token and its logit; `None` in a vocabulary of one token.
    pub runner_up: Option<(u32, f32)>,
}

impl Choice {
    pub(super) fn of(token: u32, row: &[f32]) -> Choice {
        let others = (0..).zip(row).filter(|&(id, _)| id != token);
        let best = others.max_by(|(_, x), (_, y)| x.total_cmp(y));
        Choice {
            logit: row[token as usize],
            runner_up: best.map(|(id, &logit)| (id, logit)),
        }
    }
}

/// A token just committed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenEvent<'a> {
    /// Index of the request.
    pub request: usize,
    /// The token.
    pub token: u32,
    /// The logits it was chosen from, (n_vocab); `None` if they were not copied to the host (see
    /// [`TextConfig::logits`]).
    pub logits: Option<&'a [f32]>,
}

/// The logits of one position of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptLogits<'a> {
    /// Index of the request.
    pub request: usize,
    /// The position, from 0; the logits are those of the next token.
    pub position: usize,
    /// (n_vocab)
    pub logits: &'a [f32],
}

/// One verified target pass of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundEvent<'a> {
    /// Number of the pass since the driver was made; all sequences of a pass have the same number.
    pub round: u64,
    /// Index of the request.
    pub request: usize,
    /// The sequence.
    pub seq: SeqId,
    /// Tokens in the target's caches before the pass.
    pub position: usize,
    /// The speculator whose draft was verified; `None` without a draft.
    pub drafter: Option<SpecType>,
    /// The draft.
    pub drafted: &'a [u32],
    /// Accepted tokens of the draft.
    pub n_accepted: usize,
    /// The kind of rollback of the rejected tokens; `None` if there were none.
    pub rollback: Option<Rollback>,
    /// Committed tokens that later passes have to run again, because recurrent layers kept no state at the
    /// accepted length.
    pub n_rerun: usize,
}

/// Data that a completion keeps besides its tokens, for comparison with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing.
    None,
    /// For each token the hash of its logits and the margin of its choice. Takes some nanoseconds
    /// per token of the vocabulary.
    Logits,
}

/// Settings of one text.
#[derive(Clone, Copy, Debug)]
pub struct TextConfig {
    /// Sampler of the target.
    pub sampler: Sampler,
    /// Verification of drafted tokens.
    pub verification: Verification,
    /// Data to keep for each token.
    pub proof: Proof,
    /// Random stream of the text; `None` for the number of its request.
    pub stream: Option<u64>,
    /// Maximum draft length, besides the speculators' own; 0 for plain decoding.
    pub n_draft_max: Option<usize>,
    /// Continue after tokens that end a text.
    pub ignore_end: bool,
    /// Keep the part of the caches that an earlier text shares with the prompt.
    pub reuse_cache: bool,
    /// Pass the logits of every token to [`DecodeConfig::on_token`].
    pub logits: bool,
    /// Pass the logits of every prompt position that is evaluated to
    /// [`DecodeConfig::on_prompt_logits`].
    pub prompt_logits: bool,
}

impl TextConfig {
    /// Returns settings that give the text of plain decoding and keep no data.
    pub fn new(sampler: Sampler) -> TextConfig {
        TextConfig {
            sampler,
            verification: Verification::Match,
            proof: Proof::None,
            stream: None,
            n_draft_max: None,
            ignore_end: false,
            reuse_cache: true,
            logits: false,
            prompt_logits: false,
        }
    }

    /// Keeps a proof of each token.
    pub fn with_proof(self, proof: Proof) -> TextConfig {
        TextConfig { proof, ..self }
    }
}

impl From<Sampler> for TextConfig {
    fn from(sampler: Sampler) -> TextConfig {
        TextConfig::new(sampler)
    }
}

/// Configuration of decoding.
pub struct DecodeConfig<'a> {
    /// Settings of the texts that join with this configuration.
    pub text: TextConfig,
    /// Returns true if a token ends the text.
    pub is_end: &'a dyn Fn(u32) -> bool,
    /// Called for every committed token.
    pub on_token: Option<&'a mut dyn FnMut(TokenEvent<'_>)>,
    /// Called for every row of a prompt's logits, under [`TextConfig::prompt_logits`].
    pub on_prompt_logits: Option<&'a mut dyn FnMut(PromptLogits<'_>)>,
    /// Called after each target pass, once for each of its sequences.
    pub on_round: Option<&'a mut dyn FnMut(&RoundEvent<'_>)>,
    /// Called when a speculator fails; decoding continues without it.
    pub on_failure: Option<&'a mut dyn FnMut(Failure)>,
}

impl<'a> DecodeConfig<'a> {
    /// Returns a configuration that keeps the text of plain decoding and has no callbacks.
    pub fn new(text: impl Into<TextConfig>, is_end: &'a dyn Fn(u32) -> bool) -> DecodeConfig<'a> {
        DecodeConfig {
            text: text.into(),
            is_end,
            on_token: None,
            on_prompt_logits: None,
            on_round: None,
            on_failure: None,
        }
    }
}
