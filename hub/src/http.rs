//! GET requests, their redirects, and errors from status codes.
//!
//! Redirects are followed here and not by the HTTP library, because the hub describes a file in the
//! headers of the redirect, and the token must not be sent to other hosts.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, Uri, header};

use crate::agent::{Agent, Body};
use crate::config::{HubConfig, Network};
use crate::error::{Error, Problem};

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 8;

/// HTTP client with retries.
pub(crate) struct Http {
    agent: Agent,
    config: HubConfig,
    fetched_bytes: AtomicU64,
}

/// Kind of a request; decides which error a 404 becomes.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    /// Metadata of a revision.
    Revision(&'a str),
    /// A file of this commit.
    File { commit: &'a str },
}

/// A successful response whose body is not yet read.
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Headers of the hub's last response: those of the redirect to another host, if there was one.
    pub(crate) hub: HeaderMap,
    /// Headers of the response with the body.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// Host that sends the body.
    pub(crate) host: String,
}

/// A failed attempt.
pub(crate) struct Failure {
    pub(crate) problem: Problem,
    /// Pause that the hub asks for (Retry-After).
    pub(crate) retry_after: Option<Duration>,
    /// Bytes received before the failure.
    pub(crate) n_bytes: u64,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure {
            problem,
            retry_after: None,
            n_bytes: 0,
        }
    }
}

impl Http {
    pub(crate) fn new(config: HubConfig) -> Http {
        Http {
            agent: Agent::new(&config),
            config,
            fetched_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn config(&self) -> &HubConfig {
        &self.config
    }

    /// Adds to the number of bytes received.
    pub(crate) fn count(&self, n: u64) {
        self.fetched_bytes.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the bytes of files received so far.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes.load(Ordering::Relaxed)
    }

    /// Makes attempts until one succeeds, fails permanently, or the retry limits are reached.
    pub(crate) fn retry<T>(
        &self,
        subject: &str,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let retry = &self.config.retry;
        let mut n_failed = 0;
        let mut n_bytes = 0;
        let mut asked_in_all = Duration::ZERO;
        loop {
            let failure = match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            n_bytes += failure.n_bytes;
            if n_bytes >= retry.min_progress {
                (n_failed, n_bytes, asked_in_all) = (0, 0, Duration::ZERO);
            }
            n_failed += 1;
            if !failure.problem.is_temporary() {
                return Err(failure.problem.of(subject));
            }
            if n_failed >= failure.problem.attempts(retry.attempts) {
                let last = Box::new(failure.problem);
                return Err(Problem::GaveUp { n_failed, last }.of(subject));
            }
            let doubled = retry
                .first_pause
                .saturating_mul(1 << (n_failed - 1).min(20));
            let pause = failure.retry_after.unwrap_or(doubled.min(retry.max_pause));
            asked_in_all = asked_in_all.saturating_add(failure.retry_after.unwrap_or_default());
            if asked_in_all > retry.max_asked {
                return Err(match failure.problem {
                    Problem::Status { status, .. } => Problem::Busy { status, pause }.of(subject),
                    other => other.of(subject),
                });
            }
            let error = failure.problem.of(subject);
            (self.config.on_retry)(&error, pause);
            (self.config.sleep)(pause);
        }
    }

    /// Makes one attempt to get an address, or a byte range of it.
    pub(crate) fn get(
        &self,
        address: &str,
        range: Option<Range<u64>>,
        request: Request<'_>,
    ) -> Result<Response, Failure> {
        if self.config.network == Network::Offline {
            let cache = self.config.cache.clone();
            return Err(Problem::Offline { cache }.into());
        }
        let mut uri = parse(address)?;
        let home = parse(&self.config.endpoint)?;
        let mut hub: Option<HeaderMap> = None;
        for _ in 0..=MAX_REDIRECTS {
            let host = uri.authority().map_or(String::new(), ToString::to_string);
            let at_home = is_same_host(&uri, &home);
            let response = self.call(&uri, &host, range.as_ref(), at_home)?;
            let (head, body) = response.into_parts();
            let status = head.status.as_u16();
            match status {
                200..=299 => {
                    return Ok(Response {
                        status,
                        hub: hub.unwrap_or_else(|| head.headers.clone()),
                        headers: head.headers,
                        body,
                        host,
                    });
                }
                301 | 302 | 303 | 307 | 308 => {
                    uri = follow(&uri, &head.headers)?;
                    // Redirects inside the hub, such as for a renamed repository, do not describe
                    // the file.
                    if !is_same_host(&uri, &home) && at_home {
                        hub = Some(head.headers);
                    }
                }
                _ if at_home => return Err(self.refusal(status, &head.headers, address, request)),
                // The address from the redirect may have expired, so the request is retried.
                _ => {
                    let what = format!("status {status}");
                    return Err(Problem::Transport { host, what }.into());
                }
            }
        }
        Err(Problem::UnexpectedResponse(format!("more than {MAX_REDIRECTS} redirects")).into())
    }

    /// Sends one request; the token goes to the hub only.
    fn call(
        &self,
        uri: &Uri,
        host: &str,
        range: Option<&Range<u64>>,
        at_home: bool,
    ) -> Result<http::Response<Body>, Problem> {
        let mut request = http::Request::get(uri.clone());
        if let Some(range) = range {
            let bytes = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            request = request.header(header::RANGE, bytes);
        }
        if let Some(token) = self.config.token.as_ref().filter(|_| at_home) {
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Problem::TokenCharacter);
            }
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|error| {
            let what = error.to_string();
            let host = host.to_owned();
            Problem::Transport { host, what }
        })?;
        self.agent.send(request, host)
    }

    /// Turns an error status of the hub into a failure.
    fn refusal(
        &self,
        status: u16,
        headers: &HeaderMap,
        address: &str,
        request: Request<'_>,
    ) -> Failure {
        let code = text(headers, "x-error-code").unwrap_or_default();
        let has_token = self.config.token.is_some();
        let problem = match (status, code) {
            (401 | 403, "GatedRepo") => Problem::Gated {
                page: self.page(address),
            },
            (401 | 403, _) if has_token => Problem::TokenRefused { status },
            (401 | 403, _) => Problem::NoAccess,
            (404, "RepoNotFound") => Problem::NoRepo,
            (404, _) => match (code, request) {
                ("RevisionNotFound", Request::Revision(revision)) => Problem::NoRevision {
                    revision: revision.to_owned(),
                },
                (_, Request::Revision(_)) => Problem::NoRepo,
                (_, Request::File { commit }) => Problem::NoFile {
                    commit: commit.to_owned(),
                },
            },
            _ => Problem::Status {
                status,
                detail: text(headers, "x-error-message").map(str::to_owned),
            },
        };
        Failure {
            problem,
            retry_after: text(headers, "retry-after").and_then(retry_after),
            n_bytes: 0,
        }
    }

    /// Returns the address of a repository's web page.
    fn page(&self, address: &str) -> String {
        let path = address
            .strip_prefix(&self.config.endpoint)
            .unwrap_or(address);
        let path = path.strip_prefix("/api/models").unwrap_or(path);
        let repo: Vec<&str> = path.split('/').take(3).collect();
        format!("{}{}", self.config.endpoint, repo.join("/"))
    }
}

/// Parses a Retry-After header in seconds; a number that does not fit becomes the longest pause.
/// Dates are not supported: the pause is then our own.
fn retry_after(text: &str) -> Option<Duration> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

/// Returns the text of a header.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn parse(address: &str) -> Result<Uri, Problem> {
    address
        .parse()
        .map_err(|error| Problem::UnexpectedResponse(format!("address {address:?}: {error}")))
}

fn is_same_host(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

/// Resolves the target of a redirect.
fn follow(from: &Uri, headers: &HeaderMap) -> Result<Uri, Problem> {
    let location = text(headers, "location")
        .ok_or_else(|| Problem::UnexpectedResponse("a redirect without a location".to_owned()))?;
    let to = match location.starts_with('/') && !location.starts_with("//") {
        true => {
            let mut parts = parse(location)?.into_parts();
            parts.scheme = from.scheme().cloned();
            parts.authority = from.authority().cloned();
            Uri::from_parts(parts).map_err(|error| {
                Problem::UnexpectedResponse(format!("redirect to {location:?}: {error}"))
            })?
        }
        false => parse(location)?,
    };
    let (old, new) = (from.scheme_str(), to.scheme_str());
    match new {
        Some("https") => Ok(to),
        Some("http") if old == Some("http") => Ok(to),
        _ => Err(Problem::UnexpectedResponse(format!(
            "redirect to {location:?}"
        ))),
    }
}

/// Percent-encodes a text, except for unreserved characters and those in `keep`.
pub(crate) fn escape(text: &str, keep: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        match c.is_ascii_alphanumeric() || "-_.~".contains(c) || keep.contains(&c) {
            true => out.push(c),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
