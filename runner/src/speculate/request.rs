//! What is asked of a [`Driver`](super::Driver), and what comes of it.

use schemas::report::Rollback;

use crate::batch::{Embedding, SeqId, TextPart};
use crate::hash::LogitsHash;
use crate::metrics::Tally;
use crate::sample::Sampler;

use super::{Failure, SpecType, Verification};

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names the prompt in messages.
    pub id: String,
    /// The prompt's tokens; [`NO_TOKEN`](crate::batch::NO_TOKEN) for an embedding.
    pub tokens: Vec<u32>,
    /// The embeddings among them, in order.
    pub embeddings: Vec<Embedding>,
    /// Most tokens to write.
    pub n_predict: usize,
}

impl Request {
    /// The prompt.
    pub fn prompt(&self) -> TextPart<'_> {
        TextPart {
            tokens: &self.tokens,
            embeddings: &self.embeddings,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// The model ended it.
    EndOfText,
    /// As many tokens as were asked for.
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
    /// The tokens behind the prompt.
    pub tokens: Vec<u32>,
    /// For each token the hash of the logits it was chosen from, if [`Proof::Logits`] is kept.
    pub hashes: Vec<LogitsHash>,
    /// For each token how clear a choice it was, likewise.
    pub choices: Vec<Choice>,
    /// Why it ended.
    pub stop: Stop,
    /// What it took.
    pub tally: Tally,
}

impl Completion {
    /// The text of a request that was not begun.
    pub(super) fn interrupted() -> Completion {
        Completion {
            stop: Stop::Interrupted,
            ..Completion::default()
        }
    }

    /// Nothing yet, and room for `n` tokens.
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

/// How clear the choice of a token was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Its logit.
    pub logit: f32,
    /// The best of all other tokens, and its logit; `None` in a vocabulary of one.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenEvent {
    /// Index of the request.
    pub request: usize,
    /// The token.
    pub token: u32,
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
    /// How the target dropped the rejected tokens; `None` if there were none.
    pub rollback: Option<Rollback>,
    /// Committed tokens that later passes have to run again, because recurrent layers kept no state at the
    /// accepted length.
    pub n_rerun: usize,
}

/// What a completion keeps besides its tokens, to be compared with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing.
    None,
    /// Of each token a hash of its logits, and how clear a choice it was. That takes some
    /// nanoseconds for each token of the vocabulary.
    Logits,
}

/// How to decode.
pub struct DecodeConfig<'a> {
    /// Chooses tokens.
    pub sampler: Sampler,
    /// How, where a draft has guessed.
    pub verification: Verification,
    /// What is kept of each token.
    pub proof: Proof,
    /// Whether a token ends the text.
    pub is_end: &'a dyn Fn(u32) -> bool,
    /// Hears every committed token.
    pub on_token: &'a mut dyn FnMut(TokenEvent),
    /// Called after each target pass, once for each of its sequences.
    pub on_round: &'a mut dyn FnMut(&RoundEvent<'_>),
    /// Called when a speculator fails; decoding continues without it.
    pub on_failure: &'a mut dyn FnMut(&Failure),
}
