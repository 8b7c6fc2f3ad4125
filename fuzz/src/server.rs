//! Responses of a running server that `specrun verify --url` checks.

use std::path::Path;
use std::sync::{Arc, Mutex};

use verify::prompts;
use verify::server::{ServerCheckConfig, check_server};

use crate::{Run, loopback};

/// Paths with a body of their own; all others have the last body.
const PATHS: [&str; 5] = [
    "/v1/models",
    "/props",
    "/metrics",
    "/tokenize",
    "/v1/completions",
];

/// Returns the response to a request: status 200 with the path's body, or 404 if that is empty. The bodies are those for
/// [`PATHS`] in order, separated by zero bytes.
fn answer(path: &str, bodies: &[u8]) -> Vec<u8> {
    let mut bodies = bodies.split(|&byte| byte == 0);
    let place = PATHS.iter().position(|known| *known == path);
    let body = bodies.nth(place.unwrap_or(PATHS.len())).unwrap_or_default();
    let status = match body {
        [] => "404 Not Found",
        _ => "200 OK",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn checked() -> Run {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let served = Arc::clone(&bodies);
    let url =
        loopback::start(move |path| answer(path, &served.lock().expect("no holder of it panics")));
    Box::new(move |bytes| {
        *bodies.lock().expect("no holder of it panics") = bytes.to_vec();
        check(&url)
    })
}

/// Checks a server with one prompt.
fn check(url: &str) -> bool {
    let prompts = prompts::parse(Path::new("p.jsonl"), r#"{"id": "a", "prompt": "text"}"#);
    let prompts = prompts.expect("a valid line");
    let checked = check_server(&ServerCheckConfig {
        url: url.to_owned(),
        url2: Some(url.to_owned()),
        key: None,
        prompts,
        n_predict: 4,
        n_concurrent: 2,
    });
    checked.is_ok()
}
