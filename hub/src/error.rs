//! Errors of the hub.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A failure to get a file. The message names the repository or file, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct Error {
    /// The reference to a repository or to a file in it, or the path of a cached file.
    pub subject: String,
    /// The cause.
    #[source]
    pub problem: Problem,
}

/// The cause of an error.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields say what the message says")]
pub enum Problem {
    /// A file operation failed.
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Access requires a token, or there is no such repository; the hub does not distinguish them.
    #[error(
        "no such repository, or a private one: check the name, or set HF_TOKEN to a token that may read it"
    )]
    NoAccess,
    /// The hub rejects the token.
    #[error(
        "the hub rejects the token (status {status}): set HF_TOKEN to a valid one that may read this repository, or unset it"
    )]
    TokenRefused { status: u16 },
    /// The token contains characters that a header cannot carry.
    #[error(
        "the token contains a space, a line break or another character that is invalid in an HTTP header; set HF_TOKEN to the token only"
    )]
    TokenCharacter,
    /// The repository is gated, and its terms are not accepted.
    #[error(
        "the repository is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account"
    )]
    Gated { page: String },
    /// The repository does not exist.
    #[error("no such repository (404): check the name")]
    NoRepo,
    /// The revision does not exist.
    #[error("no such revision: {revision}")]
    NoRevision { revision: String },
    /// The file does not exist.
    #[error("no such file in commit {commit}")]
    NoFile { commit: String },
    /// Any other status.
    #[error("the hub returned status {status}{}", detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Status { status: u16, detail: Option<String> },
    /// The hub asks for a longer pause than `Retry::max_asked`.
    #[error("the hub asks to wait {} s (status {status}): try again later{}", pause.as_secs(), login(*status))]
    Busy { status: u16, pause: Duration },
    /// The name of the host cannot be resolved.
    #[error("{host}: the host name cannot be resolved")]
    UnknownHost { host: String },
    /// No response, or the connection failed while it was read.
    #[error("{host}: {what}")]
    Transport { host: String, what: String },
    /// All attempts failed.
    #[error("{last} ({n_failed} attempts)")]
    GaveUp { n_failed: u32, last: Box<Problem> },
    /// The body ended early.
    #[error("the response ended at byte {at} of {end}")]
    Truncated { at: u64, end: u64 },
    /// Fewer or more bytes than requested.
    #[error("requested bytes {asked}, the response has {found}")]
    Range { asked: String, found: String },
    /// The file changed since the first response.
    #[error("changed on the hub while it was read: {what} is {found}, was {expected}; run again")]
    Changed {
        what: &'static str,
        found: String,
        expected: String,
    },
    /// The contents do not have the hash that the hub lists.
    #[error(
        "{what} is {found}, expected {expected} from the hub's listing; the download was deleted, run again"
    )]
    Hash {
        what: &'static str,
        found: String,
        expected: String,
    },
    /// The file is not in the cache, and offline mode does not allow fetching it.
    #[error("not in the cache at {}, and offline mode (HF_HUB_OFFLINE) does not allow downloads", cache.display())]
    Offline { cache: PathBuf },
    /// The crate was built without its HTTP client.
    #[error("this program was built without the feature hub, so it cannot download files")]
    NoClient,
    /// The crate was built without its upload client.
    #[error("this program was built without the feature upload, so it cannot upload files")]
    NoUpload,
    /// Uploads require a token.
    #[error("no token: set HF_TOKEN to a token that may write to the repository")]
    NoToken,
    /// The upload failed.
    #[error("upload failed: {0}; run again, data that was sent is not sent again")]
    Upload(String),
    /// A download from Xet storage failed.
    #[error("Xet storage: {0}; ordinary requests download the rest")]
    Xet(String),
    /// Another process downloads the same file.
    #[error("another process is downloading it ({}); wait until it has finished", path.display())]
    Locked { path: PathBuf },
    /// The hub's response cannot be parsed.
    #[error("unexpected response of the hub: {0}")]
    UnexpectedResponse(String),
}

fn login(status: u16) -> &'static str {
    match status {
        429 => "; requests with HF_TOKEN have a higher limit",
        _ => "",
    }
}

impl Problem {
    /// Adds the subject.
    pub(crate) fn of(self, subject: impl Into<String>) -> Error {
        Error {
            subject: subject.into(),
            problem: self,
        }
    }

    /// Returns the number of attempts after which a request is given up. A name that cannot be resolved
    /// twice is a missing network or a misspelled host, not a passing fault.
    pub(crate) fn attempts(&self, usual: u32) -> u32 {
        match self {
            Problem::UnknownHost { .. } => usual.min(2),
            _ => usual,
        }
    }

    /// Checks whether the failure is temporary, so that a retry may succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Problem::UnknownHost { .. } | Problem::Transport { .. } | Problem::Truncated { .. } => {
                true
            }
            Problem::Status { status, .. } => {
                matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
            }
            _ => false,
        }
    }
}
