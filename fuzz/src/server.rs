//! Responses of a running server that `specrun verify --url` checks.

use std::path::Path;
use std::sync::{Mutex, OnceLock};

use verify::prompts;
use verify::server::{ServerCheckConfig, check_server};

use crate::loopback;

/// Bodies of the responses, separated by zero bytes, for [`PATHS`] in order.
static BODIES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Paths with a body of their own; all others have the last body.
const PATHS: [&str; 5] = [
    "/v1/models",
    "/props",
    "/metrics",
    "/tokenize",
    "/v1/completions",
];

/// Returns the response to a request: status 200 with the path's body, or 404 if that is empty.
fn answer(path: &str) -> Vec<u8> {
    let bodies = BODIES.lock().expect("no holder of it panics");
    let mut bodies = bodies.split(|&byte| byte == 0);
    let place = PATHS.iter().position(|known| *known == path);
    let body = bodies.nth(place.unwrap_or(PATHS.len())).unwrap_or_default();
    let status = match body {
        [] => "404 Not Found",
        _ => "200 OK",
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Checks a server with one prompt.
pub(crate) fn checked(bytes: &[u8]) {
    static URL: OnceLock<String> = OnceLock::new();
    let url = URL.get_or_init(|| loopback::start(answer));
    *BODIES.lock().expect("no holder of it panics") = bytes.to_vec();
    let prompts = prompts::parse(Path::new("p.jsonl"), r#"{"id": "a", "prompt": "text"}"#);
    let prompts = prompts.expect("a valid line");
    let _ = check_server(&ServerCheckConfig {
        url: url.clone(),
        url2: Some(url.clone()),
        key: None,
        prompts,
        n_predict: 4,
        n_concurrent: 2,
    });
}
