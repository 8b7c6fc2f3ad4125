//! Where the hub is, who asks, how patiently, and where files are kept.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// How to reach a hub.
#[derive(Clone)]
pub struct HubConfig {
    /// Where it is, such as `https://huggingface.co`.
    pub endpoint: String,
    /// Who asks; sent to the endpoint's host only.
    pub token: Option<String>,
    /// The folder with one folder a repository, as the hub's own programs lay it out.
    pub cache: PathBuf,
    /// Whether anything may be fetched.
    pub network: Network,
    /// What to do when a request fails in a way that may pass.
    pub retry: Retry,
    /// How long to wait.
    pub timeouts: Timeouts,
    /// Requests at the same time.
    pub connections: usize,
    /// Most bytes of one request: what is lost at most if the record cannot be kept.
    pub piece_bytes: u64,
    /// Told why a request failed that will be tried again, and after which pause; from any thread.
    pub on_retry: Arc<OnRetry>,
    /// How to wait; a parameter so that tests need not.
    pub sleep: Arc<dyn Fn(Duration) + Send + Sync>,
}

/// Is told of a failure that may pass, and of the pause before the next attempt.
pub type OnRetry = dyn Fn(&Error, Duration) + Send + Sync;

/// Whether anything may be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// What is not in the cache is fetched.
    Online,
    /// What is not in the cache is an error.
    Offline,
}

/// When to try again. Failed attempts are counted anew after each `min_progress` bytes that came.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Attempts in a row that may fail.
    pub attempts: u32,
    /// Bytes that must come within so many failed attempts. A server that sends a few bytes and then
    /// closes the connection would otherwise be asked for ever.
    pub min_progress: u64,
    /// Pause after the first; each further one is twice as long.
    pub first_pause: Duration,
    /// Longest pause of our own; the hub may ask for a longer one.
    pub max_pause: Duration,
    /// Longest time that the hub may ask to wait, all pauses since the last progress together.
    pub max_asked: Duration,
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// A connection.
    pub connect: Duration,
    /// The first byte of an answer.
    pub answer: Duration,
    /// Each further piece of it.
    pub read: Duration,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            attempts: 6,
            min_progress: 256 << 10,
            first_pause: Duration::from_millis(500),
            max_pause: Duration::from_secs(20),
            max_asked: Duration::from_secs(300),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(15),
            answer: Duration::from_secs(60),
            read: Duration::from_secs(30),
        }
    }
}
