//! Replies to generation requests: one JSON object, or a stream of events.
//!
//! Each API has a [`Format`] that creates its JSON; this module collects the events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use schemas::report::Timings;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::job::{Done, Event, GeneratedToken, TokenLogprob};
use crate::params::Generation;
use crate::state::{AppState, Submitted};

/// The JSON of one API.
pub(crate) trait Format: Send + 'static {
    /// Returns the reply with all choices.
    fn whole(&self, choices: &[Choice], usage: Usage) -> Value;

    /// Returns the chunk that begins a choice in a stream, if there is one.
    fn begin(&mut self, index: usize, choice: &Choice) -> Option<Value>;

    /// Returns the chunk of a token.
    fn token(&mut self, index: usize, choice: &Choice, token: &GeneratedToken) -> Value;

    /// Returns the chunk that ends a choice.
    fn end(&mut self, index: usize, choice: &Choice, done: &Done) -> Value;

    /// Returns the chunk with the usage of all choices.
    fn usage(&self, usage: Usage) -> Value;

    /// True if a stream ends with `[DONE]`.
    fn has_end_marker(&self) -> bool {
        true
    }
}

/// A choice so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) slot: usize,
    pub(crate) prompt_logprobs: Vec<Option<TokenLogprob>>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) done: Option<Box<Done>>,
}

/// Token counts of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) n_prompt: u64,
    pub(crate) n_cached: u64,
    pub(crate) n_completion: u64,
    /// Sums over all choices.
    pub(crate) timings: Timings,
}

impl Usage {
    /// Adds up choices, `n` of each prompt. A prompt counts once.
    pub(crate) fn of(choices: &[Choice], n: usize) -> Usage {
        let mut usage = Usage::default();
        for (i, choice) in choices.iter().enumerate() {
            if i % n.max(1) == 0 {
                usage.n_prompt += choice.prompt.len() as u64;
            }
            usage.n_completion += choice.tokens.len() as u64;
            if let Some(done) = &choice.done {
                usage.n_cached += done.timings.cache_n;
                add(&mut usage.timings, &done.timings);
            }
        }
        usage.n_cached = usage.n_cached.min(usage.n_prompt);
        usage
    }

    /// The object of OpenAI's API.
    pub(crate) fn json(&self) -> Value {
        json!({
            "completion_tokens": self.n_completion,
            "prompt_tokens": self.n_prompt,
            "total_tokens": self.n_prompt + self.n_completion,
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
        })
    }
}

/// Adds the counts and times of another choice; rates are those of the sums.
fn add(sum: &mut Timings, other: &Timings) {
    *sum = Timings {
        cache_n: sum.cache_n + other.cache_n,
        prompt_n: sum.prompt_n + other.prompt_n,
        prompt_ms: sum.prompt_ms + other.prompt_ms,
        predicted_n: sum.predicted_n + other.predicted_n,
        predicted_ms: sum.predicted_ms + other.predicted_ms,
        draft_n: sum.draft_n + other.draft_n,
        draft_n_accepted: sum.draft_n_accepted + other.draft_n_accepted,
        ..Timings::default()
    }
    .with_rates();
}

/// Returns timings as JSON; the draft counts only if something was drafted, as llama-server does.
pub(crate) fn timings_json(timings: &Timings) -> Value {
    let mut value = serde_json::to_value(timings).unwrap_or_default();
    if timings.draft_n == 0
        && let Some(fields) = value.as_object_mut()
    {
        fields.shift_remove("draft_n");
        fields.shift_remove("draft_n_accepted");
    }
    value
}

/// Collects the events of all choices.
struct Collector {
    submitted: Submitted,
    choices: Vec<Choice>,
    n_open: usize,
}

/// The next event of a request.
enum Step {
    Began(usize),
    Token(usize, GeneratedToken),
    Ended(usize),
    Failed(ApiError),
    /// All choices are complete.
    Complete,
}

impl Collector {
    fn new(submitted: Submitted) -> Collector {
        let choice = |prompt: &Arc<[u32]>| Choice {
            prompt: Arc::clone(prompt),
            ..Choice::default()
        };
        let choices: Vec<Choice> = submitted.prompts.iter().map(choice).collect();
        Collector {
            n_open: choices.len(),
            choices,
            submitted,
        }
    }

    async fn next(&mut self) -> Step {
        if self.n_open == 0 {
            return Step::Complete;
        }
        let Some((index, event)) = self.submitted.events.recv().await else {
            return Step::Failed(ApiError::busy("the server is shutting down"));
        };
        let choice = &mut self.choices[index];
        match event {
            Event::Prompt { slot, logprobs } => {
                choice.slot = slot;
                choice.prompt_logprobs = logprobs;
                Step::Began(index)
            }
            Event::Token(token) => {
                choice.tokens.push(token.id);
                choice.text.push_str(&token.text);
                choice.logprobs.extend(token.logprob.clone());
                Step::Token(index, token)
            }
            Event::Done(done) => {
                choice.text.push_str(&done.text);
                choice.done = Some(done);
                self.n_open -= 1;
                Step::Ended(index)
            }
            Event::Failed(message) => Step::Failed(ApiError::server(message)),
        }
    }

    fn usage(&self) -> Usage {
        Usage::of(&self.choices, self.submitted.n)
    }
}

/// Replies to a request in a format.
pub(crate) async fn reply(
    state: &AppState,
    prompts: Vec<Vec<u32>>,
    generation: &Generation,
    format: impl Format,
) -> Result<Response, ApiError> {
    let mut collector = Collector::new(state.submit(prompts, generation)?);
    if generation.stream {
        let ping = KeepAlive::new().interval(state.limits.ping_interval);
        let events = Events {
            collector,
            format,
            generation: generation.clone(),
            pending: VecDeque::new(),
            is_over: false,
        };
        let stream = stream::unfold(events, |mut events| async move {
            let event = events.next().await?;
            Some((Ok::<_, Infallible>(event), events))
        });
        let mut response = Sse::new(stream).keep_alive(ping).into_response();
        let no = axum::http::HeaderValue::from_static("no");
        response.headers_mut().insert("x-accel-buffering", no);
        return Ok(response);
    }
    loop {
        match collector.next().await {
            Step::Failed(error) => return Err(error),
            Step::Complete => break,
            Step::Began(_) | Step::Token(..) | Step::Ended(_) => {}
        }
    }
    let usage = collector.usage();
    Ok(Json(format.whole(&collector.choices, usage)).into_response())
}

/// A stream of server-sent events.
struct Events<F: Format> {
    collector: Collector,
    format: F,
    generation: Generation,
    pending: VecDeque<sse::Event>,
    is_over: bool,
}

impl<F: Format> Events<F> {
    async fn next(&mut self) -> Option<sse::Event> {
        while self.pending.is_empty() && !self.is_over {
            let step = self.collector.next().await;
            self.add(step);
        }
        self.pending.pop_front()
    }

    fn add(&mut self, step: Step) {
        let (collector, format) = (&self.collector, &mut self.format);
        let mut chunk = match step {
            Step::Began(index) => format.begin(index, &collector.choices[index]),
            Step::Token(index, token) => {
                Some(format.token(index, &collector.choices[index], &token))
            }
            Step::Ended(index) => {
                let choice = &collector.choices[index];
                choice
                    .done
                    .as_ref()
                    .map(|done| format.end(index, choice, done))
            }
            Step::Failed(error) => {
                self.is_over = true;
                Some(error.body())
            }
            Step::Complete => {
                self.is_over = true;
                let wanted = self.generation.include_usage;
                wanted.then(|| format.usage(collector.usage()))
            }
        };
        if let (true, Some(Value::Object(fields))) = (self.generation.continuous_usage, &mut chunk)
        {
            fields.insert("usage".to_owned(), collector.usage().json());
        }
        self.pending
            .extend(chunk.map(|chunk| sse::Event::default().data(chunk.to_string())));
        if self.is_over && self.format.has_end_marker() {
            self.pending.push_back(sse::Event::default().data("[DONE]"));
        }
    }
}
