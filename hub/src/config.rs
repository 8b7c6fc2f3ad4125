//! Configuration of a hub: address, token, cache, retries and timeouts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// Configuration of a hub.
#[derive(Clone)]
pub struct HubConfig {
    /// Base address, such as `https://huggingface.co`.
    pub endpoint: String,
    /// Access token; sent to the endpoint's host only.
    pub token: Option<String>,
    /// The cache: one folder per repository, in the layout of the hub's own programs.
    pub cache: PathBuf,
    /// Network access, or the cache only.
    pub network: Network,
    /// Retries of requests that failed temporarily.
    pub retry: Retry,
    /// Timeouts of a request.
    pub timeouts: Timeouts,
    /// Number of concurrent requests.
    pub connections: usize,
    /// Maximum bytes of one request; a crash loses at most this much per connection.
    pub piece_bytes: u64,
    /// Called from any thread with the error of a request that will be retried, and the pause
    /// before that.
    pub on_retry: Arc<OnRetry>,
    /// Sleeps for the pause before a retry; tests replace it.
    pub sleep: Arc<dyn Fn(Duration) + Send + Sync>,
}

/// Callback for a temporary failure and the pause before the next attempt.
pub type OnRetry = dyn Fn(&Error, Duration) + Send + Sync;

/// Network access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Files that are not in the cache are fetched.
    Online,
    /// Files that are not in the cache are an error.
    Offline,
}

/// Limits of retries. The count of failed attempts is reset after every `min_progress` bytes
/// received.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Failed attempts before the request is given up.
    pub attempts: u32,
    /// Bytes that reset the count of failed attempts. Without a minimum, a server that sends a few
    /// bytes and then closes the connection would be retried forever.
    pub min_progress: u64,
    /// Pause after the first failure; each further pause is twice as long.
    pub first_pause: Duration,
    /// Maximum of these pauses; the hub may ask for a longer one.
    pub max_pause: Duration,
    /// Maximum time that the hub may ask to wait, summed over all pauses since the last progress.
    pub max_asked: Duration,
}

/// Timeouts of a request.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time to connect.
    pub connect: Duration,
    /// Time to the first byte of a response.
    pub answer: Duration,
    /// Time between two reads of the body.
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
