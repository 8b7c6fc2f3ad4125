//! Why a file cannot be had.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a file cannot be had. The message names the repository or file, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct Error {
    /// The reference to a repository or to a file in it, or the path of a cached file.
    pub subject: String,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields say what the message says")]
pub enum Problem {
    /// The operating system refused.
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Nobody may read it without saying who asks, or nobody knows it.
    #[error(
        "no such repository, or a private one: check the name, or set HF_TOKEN to a token that may read it"
    )]
    NoAccess,
    /// The hub does not know the token.
    #[error(
        "the hub refuses the token (status {status}): set HF_TOKEN to a valid one that may read this repository, or unset it"
    )]
    TokenRefused { status: u16 },
    /// The token cannot be sent.
    #[error(
        "the token has a space, a line break or another character that no header can carry: set \
         HF_TOKEN to the token alone"
    )]
    TokenCharacter,
    /// The owner wants terms accepted.
    #[error("gated: accept its terms at {page}, then set HF_TOKEN to a token of that account")]
    Gated { page: String },
    /// The repository is not there.
    #[error("no such repository (404): check the name")]
    NoRepo,
    /// The revision is not there.
    #[error("no such revision: {revision}")]
    NoRevision { revision: String },
    /// The file is not there.
    #[error("no such file in commit {commit}")]
    NoFile { commit: String },
    /// Any other answer.
    #[error("the hub answers {status}{}", detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Status { status: u16, detail: Option<String> },
    /// The hub is busy for longer than we wait.
    #[error("the hub asks to wait {} s (status {status}): try again later{}", pause.as_secs(), login(*status))]
    Busy { status: u16, pause: Duration },
    /// No answer, or not all of it.
    #[error("{host}: {what}")]
    Transport { host: String, what: String },
    /// Whatever was tried.
    #[error("{last} ({n_failed} attempts)")]
    GaveUp { n_failed: u32, last: Box<Problem> },
    /// The connection ended before the answer did.
    #[error("the answer was cut at byte {at} of {end}")]
    Cut { at: u64, end: u64 },
    /// Fewer or more bytes than were asked for.
    #[error("asked for bytes {asked}, the answer has {found}")]
    Range { asked: String, found: String },
    /// The file is another than at the beginning.
    #[error("changed on the hub while it was read: {what} is {found}, was {expected}; run again")]
    Changed {
        what: &'static str,
        found: String,
        expected: String,
    },
    /// The bytes are not those that the hub has.
    #[error("{what} is {found}, the hub says {expected}; what was fetched is deleted, run again")]
    Hash {
        what: &'static str,
        found: String,
        expected: String,
    },
    /// Nothing may be fetched.
    #[error("not in the cache at {}, and offline mode (HF_HUB_OFFLINE) forbids to fetch it", cache.display())]
    Offline { cache: PathBuf },
    /// Another process writes the same pieces.
    #[error("another program is fetching it ({}): wait until that is done", path.display())]
    Locked { path: PathBuf },
    /// What the hub says about the repository makes no sense.
    #[error("the hub's answer is not understood: {0}")]
    Answer(String),
}

fn login(status: u16) -> &'static str {
    match status {
        429 => "; requests with HF_TOKEN have a higher limit",
        _ => "",
    }
}

impl Problem {
    /// The problem with its subject.
    pub(crate) fn of(self, subject: impl Into<String>) -> Error {
        Error {
            subject: subject.into(),
            problem: self,
        }
    }

    /// Whether it may go away by itself.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Problem::Transport { .. } | Problem::Cut { .. } => true,
            Problem::Status { status, .. } => {
                matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
            }
            _ => false,
        }
    }
}
