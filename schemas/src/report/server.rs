//! Result of `specrun verify --url`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Outcome, Provenance, Verdict};

/// Checks of a running server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "verify-url")]
pub struct ServerReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Program, date, this machine and the prompts; null in reports of older versions.
    #[serde(default)]
    pub provenance: Option<Provenance>,
    /// Address of the server.
    pub url: String,
    /// Address of the server that texts were compared with; null without one.
    pub url2: Option<String>,
    /// Name of the model, as the server reports it.
    pub model: Option<String>,
    /// Version of the server, as it reports it.
    pub version: Option<String>,
    /// Maximum number of requests at the same time.
    pub n_concurrent: u64,
    /// The checks, in the order in which they ran.
    pub checks: Vec<ServerCheck>,
    /// Acceptance of each prompt.
    pub prompts: Vec<ServerPrompt>,
    /// Number of draft tokens of all prompts.
    pub draft_n: u64,
    /// Number of accepted draft tokens of all prompts.
    pub draft_n_accepted: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub accept_rate: Option<f64>,
    /// Acceptance of specrun on the same prompts; null without a model file.
    #[serde(default)]
    pub own: Option<OwnAcceptance>,
    /// The outcome of all checks.
    pub verdict: Verdict,
}

/// Acceptance of specrun on the prompts that a server was verified with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnAcceptance {
    /// Path of the model's file.
    pub model: String,
    /// Speculators, in the order they are tried.
    pub speculators: Vec<String>,
    /// Number of draft tokens.
    pub draft_n: u64,
    /// Number of accepted draft tokens.
    pub draft_n_accepted: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub accept_rate: Option<f64>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerCheck {
    /// Name of the check.
    pub name: String,
    /// Its outcome; `not-exercised` if the server does not offer what the check needs.
    pub outcome: Outcome,
    /// Short result.
    pub found: String,
    /// The first difference of each prompt whose text differs.
    pub differences: Vec<ServerDifference>,
}

/// The first difference between two texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerDifference {
    /// Name of the prompt.
    pub prompt_id: String,
    /// Number of equal tokens before the difference, or of equal bytes if the server returns no token ids.
    pub position: u64,
    /// The text from there on, as it was expected.
    pub expected: String,
    /// The text from there on, as it was found.
    pub found: String,
    /// Log-probability of the most likely token at this position minus that of the second; null if the
    /// server returns none.
    pub top_gap: Option<f64>,
    /// True if the gap is so small that rounding can decide between the two tokens.
    pub is_near_tie: Option<bool>,
    /// The request, as a command line.
    pub request: String,
}

/// Speed and acceptance of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerPrompt {
    /// Name of the prompt.
    pub prompt_id: String,
    /// Number of generated tokens; null if the server does not report it.
    pub predicted_n: Option<u64>,
    /// Tokens generated per second; null if the server does not report it.
    pub predicted_per_second: Option<f64>,
    /// Number of draft tokens.
    pub draft_n: u64,
    /// Number of accepted draft tokens.
    pub draft_n_accepted: u64,
    /// Accepted draft tokens divided by drafted ones; null if nothing was drafted.
    pub accept_rate: Option<f64>,
}
