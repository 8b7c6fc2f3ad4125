//! `specrun verify --url` and `specrun bench --url`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
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

/// Answers every completion with another text.
fn unsteady() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut n_body) = (String::new(), 0);
            reader.read_line(&mut line).unwrap();
            let request = line.clone();
            while line.trim() != "" {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    n_body = value.trim().parse().unwrap();
                }
            }
            reader.read_exact(&mut vec![0; n_body]).unwrap();
            let (status, body) = match request.split(' ').nth(1).unwrap() {
                "/v1/models" => ("200 OK", json!({"data": [{"id": "m"}]})),
                "/v1/completions" => (
                    "200 OK",
                    json!({"choices": [{"text": format!("same {i}")}]}),
                ),
                _ => ("404 Not Found", json!({})),
            };
            let body = body.to_string();
            let n = body.len();
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {n}");
            let _ = write!(stream, "{head}\r\n\r\n{body}");
        }
    });
    format!("http://{address}")
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
