//! [`Job`]: a text to generate, and the [`Event`]s that report its progress.

use runner::sample::SampleConfig;
use schemas::report::Timings;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// A text to generate.
#[derive(Debug)]
pub(crate) struct Job {
    /// Index of the choice in its request.
    pub(crate) index: usize,
    /// Prompt token ids.
    pub(crate) prompt: Arc<[u32]>,
    /// Random stream: the number of the choice among those of one prompt, so that choices differ.
    pub(crate) stream: u64,
    /// Settings shared by all choices of a request.
    pub(crate) params: Arc<Params>,
    /// Receives the events of all choices of a request. A job whose receiver is gone is cancelled. The
    /// channel needs no bound: a job sends at most one event per position of its context.
    pub(crate) events: UnboundedSender<(usize, Event)>,
}

/// Settings of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Params {
    /// Maximum number of tokens to generate; `None` until the context is full.
    pub(crate) n_predict: Option<usize>,
    /// Sampling.
    pub(crate) sample: SampleConfig,
    /// Texts that end the completion; they are not part of it.
    pub(crate) stop: Vec<String>,
    /// Continue after end-of-sequence tokens.
    pub(crate) ignore_eos: bool,
    /// Return log-probabilities of the generated tokens and of this many most likely ones.
    pub(crate) n_probs: Option<usize>,
    /// Return log-probabilities of the prompt's tokens, too.
    pub(crate) prompt_probs: bool,
    /// Maximum draft length of this request; `None` for the server's, 0 for no drafts.
    pub(crate) n_draft_max: Option<usize>,
    /// Reuse the KV cache of earlier texts with the same prefix.
    pub(crate) cache_prompt: bool,
    /// The slot to run in; `None` for any.
    pub(crate) id_slot: Option<usize>,
    /// Return a hash of the logits that the tokens were chosen from.
    pub(crate) logits_hash: bool,
}

/// Progress of a job.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The prompt was evaluated, with the log-probabilities of its tokens if requested. The first token
    /// has none.
    Prompt {
        /// The slot that runs the job.
        slot: usize,
        /// One entry per prompt token, or empty.
        logprobs: Vec<Option<TokenLogprob>>,
    },
    /// A token was generated.
    Token(GeneratedToken),
    /// The text is complete.
    Done(Box<Done>),
    /// Decoding failed.
    Failed(String),
}

/// A generated token.
#[derive(Clone, Debug)]
pub(crate) struct GeneratedToken {
    /// The token id.
    pub(crate) id: u32,
    /// Text that this token completed; empty inside a character or a possible stop string.
    pub(crate) text: String,
    /// Log-probabilities, if requested.
    pub(crate) logprob: Option<TokenLogprob>,
}

/// Log-probability of a token, and the most likely tokens at its position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    /// The token id.
    pub(crate) id: u32,
    /// Natural logarithm of the token's probability.
    pub(crate) logprob: f32,
    /// The most likely tokens and their log-probabilities, most likely first.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// An end-of-sequence token.
    EndOfText,
    /// One of the request's stop strings.
    Word(String),
    /// The requested number of tokens was generated.
    Length,
    /// The context is full.
    Context,
}

/// The end of a text.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Text that was held back as the beginning of a stop string or of a character.
    pub(crate) text: String,
    /// Why the text ended.
    pub(crate) finish: Finish,
    /// Times and counts.
    pub(crate) timings: Timings,
    /// Verified and accepted draft tokens by position in the draft.
    pub(crate) by_draft_position: Vec<[u64; 2]>,
    /// Number of verified drafts.
    pub(crate) n_drafts: u64,
    /// Hash of the logits that the tokens were chosen from, if requested.
    pub(crate) logits_hash: Option<String>,
}

impl Finish {
    /// The name of OpenAI's API.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Finish::EndOfText | Finish::Word(_) => "stop",
            Finish::Length | Finish::Context => "length",
        }
    }

    /// The name of llama-server's native API.
    pub(crate) fn stop_type(&self) -> &'static str {
        match self {
            Finish::EndOfText => "eos",
            Finish::Word(_) => "word",
            Finish::Length | Finish::Context => "limit",
        }
    }
}
