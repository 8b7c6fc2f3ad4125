//! [`AppState`]: the state that all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runner::model_files::Files;
use runner::sample::SampleConfig;
use serde_json::{Map, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::auth::ApiKeys;
use crate::engine::Shared;
use crate::error::ApiError;
use crate::job::{Event, Job};
use crate::params::{Generation, RANDOM_SEED};
use crate::prompt::MAX_TEXTS;

/// Limits of requests and connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a request body in bytes.
    pub max_body: usize,
    /// Time for a request's header to arrive, also between requests of a connection.
    pub header_timeout: Duration,
    /// Time for a request's body to arrive.
    pub body_timeout: Duration,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Maximum number of texts that wait for a slot.
    pub max_queue: usize,
    /// Interval of comments in a silent stream, which keep proxies from closing it.
    pub ping_interval: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_body: 16 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            max_connections: 1024,
            max_queue: 64,
            ping_interval: Duration::from_secs(30),
        }
    }
}

/// The model, as clients see it.
#[derive(Clone, Debug)]
pub(crate) struct ModelInfo {
    /// Name in replies: the alias, else the file's name.
    pub(crate) id: String,
    /// Context of each slot in tokens.
    pub(crate) n_ctx: usize,
    /// Number of slots.
    pub(crate) n_slots: usize,
    /// Names of the speculators.
    pub(crate) spec_types: Vec<String>,
    /// Backend that runs the model.
    pub(crate) backend: String,
    /// Version of the program.
    pub(crate) version: String,
    /// Size of the model file's tensors in bytes, and number of weights.
    pub(crate) size: u64,
    pub(crate) n_params: u64,
}

/// Shared state of all handlers.
pub(crate) struct AppState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) files: Arc<Files>,
    pub(crate) model: ModelInfo,
    pub(crate) keys: ApiKeys,
    pub(crate) limits: Limits,
    /// Sampling settings of requests that have none.
    pub(crate) sample: SampleConfig,
    /// Chat template to use instead of the model's own.
    pub(crate) chat_template: Option<String>,
    /// Variables of the chat template that requests may override.
    pub(crate) chat_kwargs: Map<String, Value>,
    /// Time of the start, in seconds since 1970.
    pub(crate) started: u64,
    /// Numbers for reply ids and random seeds.
    pub(crate) next: AtomicU64,
    pub(crate) secret: u64,
}

/// The texts of a request that are being generated.
pub(crate) struct Submitted {
    /// Events of all choices, with the index of the choice.
    pub(crate) events: UnboundedReceiver<(usize, Event)>,
    /// Prompt of each choice.
    pub(crate) prompts: Vec<Arc<[u32]>>,
    /// Choices per prompt.
    pub(crate) n: usize,
}

impl AppState {
    /// Returns a number that is unique in this process and hard to predict.
    pub(crate) fn unique(&self) -> u64 {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        mix(self.secret ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns a seed of 32 bits, so that a client can send it back; not the one that asks for a random
    /// seed.
    pub(crate) fn random_seed(&self) -> u64 {
        self.unique() % RANDOM_SEED
    }

    /// Returns a reply id of 32 characters.
    pub(crate) fn reply_id(&self) -> String {
        format!("chatcmpl-{:016x}{:016x}", self.unique(), self.unique())
    }

    /// Queues `generation.n` choices for every prompt.
    ///
    /// # Errors
    /// A prompt is empty or too long, there are too many, or the queue is full.
    pub(crate) fn submit(
        &self,
        prompts: Vec<Vec<u32>>,
        generation: &Generation,
    ) -> Result<Submitted, ApiError> {
        let (n_prompts, n) = (prompts.len(), generation.n);
        if n_prompts * n > MAX_TEXTS {
            return Err(ApiError::invalid(format!(
                "{n_prompts} prompts with {n} choices each, expected at most {MAX_TEXTS} texts"
            )));
        }
        let n_ctx = self.model.n_ctx;
        for prompt in &prompts {
            if prompt.is_empty() {
                return Err(ApiError::invalid("the prompt has no tokens"));
            }
            let n_least = usize::from(generation.params.n_predict != Some(0));
            if prompt.len() + n_least > n_ctx {
                return Err(ApiError::context_size(prompt.len(), n_ctx));
            }
        }
        let (sender, events) = unbounded_channel();
        let params = Arc::new(generation.params.clone());
        let prompts: Vec<Arc<[u32]>> = prompts.into_iter().map(Arc::from).collect();
        let choices = prompts
            .iter()
            .flat_map(|prompt| (0..n as u64).map(move |stream| (Arc::clone(prompt), stream)));
        let jobs: Vec<Job> = choices
            .enumerate()
            .map(|(index, (prompt, stream))| Job {
                index,
                prompt,
                stream,
                params: Arc::clone(&params),
                events: sender.clone(),
            })
            .collect();
        let prompts = jobs.iter().map(|job| Arc::clone(&job.prompt)).collect();
        self.shared.queue.push(jobs)?;
        Ok(Submitted { events, prompts, n })
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

/// Scrambles a number (finalizer of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
