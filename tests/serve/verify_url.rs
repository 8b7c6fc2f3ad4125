//! `specrun verify --url` and `specrun bench --url`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::thread;

use serde_json::{Value, json};

use super::server::Server;
use crate::cli::assert_valid;
use crate::util::{Dir, specrun};

fn outcomes(report: &Value) -> Vec<(String, String)> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .map(|check| {
            let text = |name: &str| check[name].as_str().unwrap().to_owned();
            (text("name"), text("outcome"))
        })
        .collect()
}

#[test]
fn our_server_passes() {
    let (dir, server) = Server::start(&["--spec-draft-fixed", "-np", "3"]);
    let (_plain_dir, plain) = Server::start(&["--spec-type", "none"]);
    let url = |server: &Server| format!("http://{}", server.address);
    let pages = ["junit", "markdown", "html"].map(|name| (name, dir.join(name)));
    let mut verify = specrun("verify")
        .args(["--url", &url(&server), "--url2", &url(&plain), "-n", "24"])
        .args(["--concurrency", "5", "-m"])
        .arg(dir.join("target.gguf"));
    for (name, path) in &pages {
        verify = verify.arg(format!("--{name}")).arg(path);
    }
    let report = verify.json();
    assert_valid("verify-url", &report);
    let outcomes = outcomes(&report);
    assert!(
        outcomes.iter().all(|(_, outcome)| outcome == "pass"),
        "{outcomes:?}"
    );
    assert!(
        outcomes
            .iter()
            .any(|(name, _)| name.contains("speculative.n_max 0"))
    );
    assert!(report["draft_n_accepted"].as_u64() > Some(0));
    for name in ["draft_n", "draft_n_accepted"] {
        assert_eq!(report["own"][name], report[name]);
    }
    for (name, path) in &pages {
        let page = fs::read_to_string(path).unwrap();
        assert!(page.contains("speculative.n_max 0"), "{name}: {page}");
    }
}

/// A server drafts what a run on its file drafts.
#[test]
fn tasks_on_a_server_have_the_counts_of_the_file() {
    let (dir, server) = Server::start(&["--spec-draft-fixed"]);
    let bench = || specrun("bench").args(["-n", "16", "-r", "1"]);
    let url = format!("http://{}", server.address);
    let found = bench().args(["--url", &url]).json();
    assert_valid("bench-tasks", &found);
    let file = dir.join("target.gguf");
    let expected = bench().arg("--tasks").arg("-m").arg(&file).json();
    let counts = |report: &Value| {
        let tasks = report["tasks"].as_array().unwrap().iter();
        let names = ["task", "predicted_n", "draft_n", "draft_n_accepted"];
        let counts = tasks.map(|task| names.map(|name| task[name].clone()));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(counts(&found), counts(&expected));
    assert!(found["tasks"][0]["plain_per_second"].is_number());
    let compared = dir.file("a.json", found.to_string());
    let shown = specrun("bench")
        .arg("--compare")
        .arg(&compared)
        .arg(&compared)
        .ok();
    assert!(shown.contains("overall acceptance"), "{shown}");
}

/// A request to a stub.
struct Request {
    path: String,
    body: Value,
    /// Number of requests before this one.
    i: usize,
}

/// Starts a server that answers with a status and a body, and returns its address.
fn stub(answer: impl Fn(&Request) -> (&'static str, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut n_body) = (String::new(), 0);
            reader.read_line(&mut line).unwrap();
            let path = line.split(' ').nth(1).unwrap().to_owned();
            while line.trim() != "" {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    n_body = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; n_body];
            reader.read_exact(&mut body).unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, body) = answer(&Request { path, body, i });
            let n = body.len();
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {n}");
            let _ = write!(stream, "{head}\r\n\r\n{body}");
        }
    });
    format!("http://{address}")
}

const MISSING: (&str, String) = ("404 Not Found", String::new());

/// Answers every completion with another text.
fn unsteady() -> String {
    stub(|request| match &request.path[..] {
        "/v1/models" => ("200 OK", json!({"data": [{"id": "m"}]}).to_string()),
        "/v1/completions" => {
            let text = format!("same {}", request.i);
            ("200 OK", json!({"choices": [{"text": text}]}).to_string())
        }
        _ => MISSING,
    })
}

/// Answers as vLLM with two engines does: drafts are counted in the metrics alone, and requests have no switch
/// for them.
fn vllm() -> String {
    let counts = Mutex::new([0; 2]);
    stub(move |request| {
        let body = &request.body;
        let mut counts = counts.lock().unwrap();
        let reply = match &request.path[..] {
            "/v1/models" => json!({
                "object": "list",
                "data": [{"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 512}],
            }),
            "/version" => json!({"version": "0.28.0"}),
            "/tokenize" => {
                let bytes = body["prompt"].as_str().unwrap().as_bytes();
                let n = bytes.len();
                json!({"count": n, "max_model_len": 512, "tokens": bytes, "token_strs": null})
            }
            "/metrics" => {
                let lines = ["num_draft_tokens", "num_accepted_tokens"]
                    .iter()
                    .zip(*counts);
                let lines = lines.flat_map(|(name, n)| {
                    [(0, n), (1, 0)].map(|(engine, n)| {
                        format!("vllm:spec_decode_{name}_total{{engine=\"{engine}\",model_name=\"m\"}} {n}.0\n")
                    })
                });
                return ("200 OK", lines.collect());
            }
            "/v1/chat/completions" => {
                let n = body["max_tokens"].as_u64().unwrap();
                *counts = [counts[0] + n, counts[1] + n / 2];
                json!({
                    "object": "chat.completion", "model": "m",
                    "choices": [{
                        "index": 0, "finish_reason": "length", "stop_reason": null,
                        "message": {"role": "assistant", "content": "text", "reasoning": null},
                    }],
                    "usage": {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": n + 9},
                })
            }
            "/v1/completions" => {
                assert_eq!(body["n_predict"], Value::Null);
                let n = body["max_tokens"].as_u64().unwrap();
                let prompt = body["prompt"].as_array().unwrap();
                let mut ids: Vec<u64> = prompt.iter().map(|id| id.as_u64().unwrap()).collect();
                for _ in 0..n {
                    ids.push((ids.iter().sum::<u64>() * 7 + 3) % 50);
                }
                let ids = ids.split_off(prompt.len());
                // A draft leaves room for one token of the target.
                *counts = [counts[0] + n - 1, counts[1] + n / 2];
                let object = |ids: &[u64]| {
                    let text: String = ids.iter().map(|id| format!(" t{id}")).collect();
                    json!({
                        "object": "text_completion", "model": "m",
                        "choices": [{
                            "index": 0, "text": text, "token_ids": ids, "logprobs": null,
                            "finish_reason": "length", "stop_reason": null, "prompt_logprobs": null,
                        }],
                        "usage": {"prompt_tokens": prompt.len(), "completion_tokens": n},
                        "kv_transfer_params": null,
                    })
                };
                if body["stream"] == true {
                    let events = ids
                        .chunks(3)
                        .map(|ids| format!("data: {}\n\n", object(ids)));
                    let usage = json!({"choices": [], "usage": {"completion_tokens": n}});
                    let end = format!("data: {usage}\n\ndata: [DONE]\n\n");
                    return ("200 OK", events.collect::<String>() + &end);
                }
                object(&ids)
            }
            _ => return MISSING,
        };
        ("200 OK", reply.to_string())
    })
}

/// Acceptance comes from vLLM's metrics, and texts are compared with those generated token by token.
#[test]
fn vllm_is_verified_and_measured() {
    let url = vllm();
    let report = specrun("verify").args(["--url", &url, "-n", "20"]);
    // A model in the environment is not the server's.
    let report = report.env("LLAMA_ARG_MODEL", "missing.gguf").json();
    assert_valid("verify-url", &report);
    let outcomes = outcomes(&report);
    assert!(
        outcomes.iter().all(|(_, outcome)| outcome == "pass"),
        "{report}"
    );
    assert!(
        outcomes
            .iter()
            .any(|(name, _)| name.contains("one token per request"))
    );
    assert_eq!(
        (&report["version"], &report["own"]),
        (&json!("0.28.0"), &Value::Null)
    );
    assert_eq!(
        [&report["draft_n"], &report["draft_n_accepted"]],
        [190, 100]
    );
    let bench = specrun("bench").args(["--url", &url, "-n", "20", "-r", "1"]);
    let bench = bench.json();
    assert_valid("bench-tasks", &bench);
    let task = &bench["tasks"][0];
    assert_eq!([&task["draft_n"], &task["draft_n_accepted"]], [20, 10]);
    // It drafts although the request asks for none.
    assert_eq!(task["plain_per_second"], Value::Null);
}

#[test]
fn a_server_with_other_texts_fails() {
    let dir = Dir::new();
    let prompts = dir.file("p.jsonl", "{\"id\": \"a\", \"prompt\": \"def f\"}");
    let verify = specrun("verify").args(["--url", &unsteady(), "--json", "-f"]);
    let ran = verify.arg(&prompts).run();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_valid("verify-url", &report);
    let outcomes = outcomes(&report);
    let of = |name: &str| {
        let found = outcomes.iter().find(|(found, _)| found.starts_with(name));
        found.map(|(_, outcome)| &outcome[..])
    };
    assert_eq!(of("counters"), Some("not-exercised"));
    assert_eq!(of("repeated, with"), Some("fail"));
    assert_eq!(of("without drafts"), Some("not-exercised"));
    let difference = &report["checks"][1]["differences"][0];
    assert_eq!(difference["position"], 5);
    assert!(
        difference["request"]
            .as_str()
            .unwrap()
            .starts_with("curl http")
    );
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}");
    let error = specrun("verify").args(["--url", &url]).error();
    assert!(error.contains(&format!("{url}/v1/models")), "{error}");
}
