//! `specrun serve`: protocols, identical texts under load, refused requests, shutdown.

mod chat;
mod hostile;
mod server;
mod verify_url;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::util::specrun;
use server::{Server, read_reply};

const PROMPTS: [&str; 4] = [
    "def fibonacci(n):\n",
    "import os\n",
    "class Stack:\n",
    "for i in range(10):\n    ",
];

fn greedy(prompt: &str, n: usize) -> Value {
    json!({"prompt": prompt, "n_predict": n, "temperature": 0})
}

/// A text does not depend on speculation, on other requests, or on what a slot held before.
#[test]
fn texts_are_those_of_plain_decoding() {
    let (dir, server) = Server::start(&["-np", "3", "--spec-draft-fixed"]);
    let expected = PROMPTS.map(|prompt| {
        let generate = specrun("generate").arg("-m").arg(dir.join("target.gguf"));
        let generate = generate.args(["-p", prompt, "-n", "60", "--spec-type", "none"]);
        generate.json()["text"].as_str().unwrap().to_owned()
    });
    let content = |body: &Value| {
        let reply = server.post("/completion", body);
        assert_eq!(reply["stop"], true);
        (
            reply["content"].as_str().unwrap().to_owned(),
            reply["timings"]["draft_n"].as_u64(),
        )
    };
    for (prompt, expected) in PROMPTS.iter().zip(&expected) {
        let (text, n_drafted) = content(&greedy(prompt, 60));
        assert_eq!(&text, expected);
        assert!(n_drafted > Some(0));
        let mut plain = greedy(prompt, 60);
        plain["speculative.n_max"] = 0.into();
        assert_eq!(content(&plain), (expected.clone(), None));
    }
    // Twelve clients on three slots, and clients that leave.
    thread::scope(|scope| {
        for i in 0..12 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                if i % 4 == 3 {
                    let mut stream = server.connect();
                    let body =
                        json!({"prompt": PROMPTS[0], "stream": true, "n_predict": 400}).to_string();
                    let n = body.len();
                    write!(
                        stream,
                        "POST /completion HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\n\r\n{body}"
                    )
                    .unwrap();
                    let _ = stream.read(&mut [0; 64]);
                    return;
                }
                let reply = server.post("/completion", &greedy(PROMPTS[i % 4], 60));
                assert_eq!(reply["content"], expected[i % 4].as_str());
            });
        }
    });
    // A used cache changes nothing.
    for (prompt, expected) in PROMPTS.iter().zip(&expected) {
        let reply = server.post("/completion", &greedy(prompt, 60));
        assert_eq!(reply["content"], expected.as_str());
    }
    let started = Instant::now();
    while server
        .get("/slots")
        .as_array()
        .unwrap()
        .iter()
        .any(|slot| slot["is_processing"] == true)
    {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "a slot of a client that left stays busy"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sampled texts depend on the seed alone.
#[test]
fn a_seed_gives_the_same_text_with_and_without_drafts() {
    let (_dir, server) = Server::start(&["--spec-draft-fixed"]);
    let text = |seed: u64, n_max: u64| {
        let body = json!({
            "prompt": PROMPTS[0], "n_predict": 40, "temperature": 0.8, "seed": seed,
            "speculative.n_max": n_max, "logits_hash": true,
        });
        let reply = server.post("/completion", &body);
        (reply["content"].clone(), reply["logits_hash"].clone())
    };
    let first = text(1, 3);
    assert_eq!(text(1, 0), first);
    assert_ne!(text(2, 3).0, first.0);
    assert!(first.1.is_string());
}

/// Log-probabilities of accepted draft tokens are the target's, and `echo` has those of the prompt.
#[test]
fn logprobs_are_the_targets() {
    let (_dir, server) = Server::start(&["--spec-draft-fixed"]);
    let reply = |n_max: u64| {
        let body = json!({
            "prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0, "logprobs": 3, "echo": true,
            "speculative.n_max": n_max, "return_token_ids": true,
        });
        server.post("/v1/completions", &body)
    };
    let (drafted, plain) = (reply(3), reply(0));
    assert!(drafted["timings"]["draft_n_accepted"].as_u64() > Some(0));
    let choice = &drafted["choices"][0];
    assert_eq!(choice["logprobs"], plain["choices"][0]["logprobs"]);
    let logprobs = &choice["logprobs"];
    let arrays = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    let [tokens, values, tops, _] = arrays.map(|name| logprobs[name].as_array().unwrap());
    let n_prompt = choice["prompt_token_ids"].as_array().unwrap().len();
    assert_eq!(tokens.len(), n_prompt + 24);
    assert_eq!((&values[0], &tops[0]), (&Value::Null, &Value::Null));
    for (i, (token, value)) in tokens.iter().zip(values).enumerate().skip(1) {
        // Clients compare these floats for equality.
        assert_eq!(&tops[i][token.as_str().unwrap()], value);
        let most = tops[i]
            .as_object()
            .unwrap()
            .values()
            .map(|x| x.as_f64().unwrap())
            .fold(f64::MIN, f64::max);
        assert!(value.as_f64().unwrap() <= most && value.as_f64() < Some(0.0));
        // Greedy decoding chooses the most likely token.
        assert!(i < n_prompt || value.as_f64() == Some(most), "{i}");
    }
    // The text that was generated has the same log-probabilities when it is scored as a prompt.
    let all: Vec<u64> = ["prompt_token_ids", "token_ids"]
        .iter()
        .flat_map(|name| {
            choice[name]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap())
        })
        .collect();
    let body =
        json!({"prompt": all, "max_tokens": 0, "logprobs": 3, "echo": true, "temperature": 0});
    let scored = server.post("/v1/completions", &body);
    assert_eq!(scored["choices"][0]["logprobs"], *logprobs);
}

/// The end-of-sequence token has a log-probability, too: lm-eval drops the last one, that of the generated
/// token, and would drop one of the prompt's otherwise.
#[test]
fn the_last_token_has_a_log_probability() {
    let (_dir, server) = Server::start(&[]);
    let body = json!({
        "messages": [{"role": "user", "content": "Write a loop."}], "max_tokens": 60,
        "temperature": 0, "logprobs": true, "return_token_ids": true,
    });
    let reply = server.post("/v1/chat/completions", &body);
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    let ids = |name: &str| choice[name].as_array().unwrap().clone();
    let n_tokens = ids("token_ids").len();
    assert_eq!(
        choice["logprobs"]["content"].as_array().unwrap().len(),
        n_tokens
    );
    let prompt = [ids("prompt_token_ids"), ids("token_ids")].concat();
    let (_, prompt) = prompt.split_last().unwrap();
    let body = json!({
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 1,
    });
    let scored = server.post("/v1/completions", &body)["choices"][0].clone();
    assert_eq!(scored["finish_reason"], "stop");
    let values = scored["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(values.len(), prompt.len() + 1);
}

#[test]
fn streams_have_the_text_of_plain_replies() {
    let (_dir, server) = Server::start(&["--spec-draft-fixed"]);
    let messages = json!([{"role": "user", "content": "Write a loop."}]);
    let cases = [
        (
            "/v1/completions",
            json!({"prompt": PROMPTS[1], "max_tokens": 20, "temperature": 0}),
        ),
        (
            "/v1/completions",
            json!({"prompt": PROMPTS[1], "max_tokens": 20, "temperature": 0, "echo": true}),
        ),
        (
            "/v1/completions",
            json!({"prompt": PROMPTS[1], "max_tokens": 0, "temperature": 0, "echo": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 20, "temperature": 0}),
        ),
    ];
    for (path, mut body) in cases {
        let whole = server.post(path, &body);
        let choice = &whole["choices"][0];
        let text = choice["text"]
            .as_str()
            .or(choice["message"]["content"].as_str())
            .unwrap();
        if body["echo"] == true {
            assert!(text.starts_with(PROMPTS[1]), "{text}");
        }
        assert_eq!(
            whole["usage"]["completion_tokens"],
            whole["timings"]["predicted_n"]
        );
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let events = server.events(path, &body);
        let (end, chunks) = events.split_last().unwrap();
        assert_eq!(end, "[DONE]");
        let chunks: Vec<Value> = chunks
            .iter()
            .map(|c| serde_json::from_str(c).unwrap())
            .collect();
        let (usage, chunks) = chunks.split_last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"], whole["usage"]);
        let piece = |chunk: &Value| {
            let choice = &chunk["choices"][0];
            let piece = choice["text"]
                .as_str()
                .or(choice["delta"]["content"].as_str());
            piece.unwrap_or_default().to_owned()
        };
        assert_eq!(chunks.iter().map(piece).collect::<String>(), text);
        if path.contains("chat") {
            let (first, rest) = chunks.split_first().unwrap();
            let role = |chunk: &Value| chunk["choices"][0]["delta"]["role"].clone();
            assert_eq!(role(first), "assistant");
            assert!(rest.iter().all(|chunk| role(chunk).is_null()));
        }
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], choice["finish_reason"]);
    }
}

#[test]
fn stop_strings_end_a_text() {
    let (_dir, server) = Server::start(&["--spec-draft-fixed"]);
    let whole = server.post("/completion", &greedy(PROMPTS[0], 60));
    let whole = whole["content"].as_str().unwrap();
    let (at, stop) = whole
        .char_indices()
        .skip(12)
        .find(|(_, c)| *c == '\n')
        .map(|(at, _)| (at, "\n"))
        .unwrap();
    let mut body = greedy(PROMPTS[0], 60);
    body["stop"] = json!([&whole[at - 3..at + 1], "never"]);
    let reply = server.post("/completion", &body);
    assert_eq!(reply["content"], &whole[..at - 3]);
    assert_eq!(
        (&reply["stop_type"], &reply["stopping_word"]),
        (&json!("word"), &body["stop"][0])
    );
    assert_eq!(stop.len(), 1);
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let (_dir, server) = Server::start(&["-c", "64", "-np", "2"]);
    let long = "word ".repeat(200);
    for (path, body, status, message) in [
        ("/completion", "{".to_owned(), 400, "request body"),
        (
            "/completion",
            "[1]".to_owned(),
            400,
            "expected a JSON object",
        ),
        ("/completion", "{}".to_owned(), 400, "'prompt' is missing"),
        ("/completion", "[".repeat(100_000), 400, "recursion limit"),
        (
            "/completion",
            r#"{"prompt": [1e400]}"#.to_owned(),
            400,
            "number out of range",
        ),
        (
            "/completion",
            r#"{"prompt": [99999999]}"#.to_owned(),
            400,
            "token id 99999999",
        ),
        (
            "/completion",
            r#"{"prompt": [-1]}"#.to_owned(),
            400,
            "token id -1",
        ),
        (
            "/completion",
            r#"{"prompt": "a", "temperature": "hot"}"#.to_owned(),
            400,
            "'temperature'",
        ),
        (
            "/v1/completions",
            r#"{"prompt": "a", "n": 3}"#.to_owned(),
            400,
            "'n'",
        ),
        (
            "/v1/completions",
            r#"{"prompt": "a", "suffix": "b"}"#.to_owned(),
            400,
            "'suffix'",
        ),
        ("/v1/chat/completions", "{}".to_owned(), 400, "'messages'"),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#.to_owned(),
            400,
            "text",
        ),
        (
            "/v1/chat/completions",
            r#"{"messages": [], "tools": [{}]}"#.to_owned(),
            400,
            "'tools'",
        ),
        (
            "/completion",
            json!({"prompt": long}).to_string(),
            400,
            "context size 64",
        ),
        ("/v1/embeddings", "{}".to_owned(), 501, "not supported"),
        ("/nowhere", "{}".to_owned(), 404, "File Not Found"),
        ("/health", "{}".to_owned(), 405, "method"),
        (
            "/detokenize",
            r#"{"tokens": [99999999]}"#.to_owned(),
            400,
            "token id",
        ),
    ] {
        let (found, error) = server.refused(path, &body);
        assert_eq!(found, status, "{path} {error}");
        assert!(
            error["message"].as_str().unwrap().contains(message),
            "{path} {error}"
        );
    }
    let (status, reply) = server.send("POST", "/completion", "", "x".repeat((16 << 20) + 1));
    assert_eq!(status, 413, "{reply}");
    // The server still answers.
    assert_eq!(server.get("/health")["status"], "ok");
    assert_eq!(
        server.post("/completion", &greedy("a", 4))["tokens_predicted"],
        4
    );
}

#[test]
fn keys_protect_everything_but_health() {
    let (_dir, server) = Server::start(&["--api-key", "one,two"]);
    assert_eq!(server.get("/health")["status"], "ok");
    let status = |headers: &str| server.send("GET", "/v1/models", headers, "").0;
    assert_eq!(status(""), 401);
    assert_eq!(status("authorization: Bearer three\r\n"), 401);
    assert_eq!(status("authorization: Bearer two\r\n"), 200);
    assert_eq!(status("x-api-key: one\r\n"), 200);
}

#[test]
fn tokens_and_templates() {
    let (_dir, server) = Server::start(&["--spec-draft-fixed"]);
    let tokens = server.post("/tokenize", &json!({"content": "def f():"}))["tokens"].clone();
    assert_eq!(
        server.post("/detokenize", &json!({"tokens": tokens}))["content"],
        "def f():"
    );
    let vllm = server.post(
        "/tokenize",
        &json!({"prompt": "def f():", "add_special_tokens": false}),
    );
    assert_eq!(
        (&vllm["tokens"], &vllm["count"]),
        (&tokens, &json!(tokens.as_array().unwrap().len()))
    );
    let messages = json!({"messages": [{"role": "user", "content": "hi"}]});
    let prompt = server.post("/apply-template", &messages)["prompt"].clone();
    assert!(prompt.as_str().unwrap().contains("hi"), "{prompt}");
    assert!(server.get("/tokenizer_info")["eos_token"].is_string());
    let metrics = server.send("GET", "/metrics", "", "").1;
    assert!(
        metrics.contains("llamacpp:prompt_tokens_total")
            && metrics.contains("vllm:spec_decode_num_drafts_total")
    );
}

/// A seed that a reply reports gives the same text again.
#[test]
fn a_random_seed_can_be_sent_back() {
    let (_dir, server) = Server::start(&["-np", "1"]);
    let body = json!({"prompt": PROMPTS[2], "n_predict": 12, "temperature": 1.5});
    let first = server.post("/completion", &body);
    let seed = &first["generation_settings"]["seed"];
    assert!(seed.as_u64() < Some(u32::MAX.into()), "{seed}");
    let mut again = body.clone();
    again["seed"] = seed.clone();
    assert_eq!(
        server.post("/completion", &again)["content"],
        first["content"]
    );
    let other = server.post("/completion", &body);
    assert_ne!(&other["generation_settings"]["seed"], seed);
}

/// Without a limit a text ends with the context, in every API.
#[test]
fn texts_without_a_limit_fill_the_context() {
    let (_dir, server) = Server::start(&["-c", "64", "-np", "1"]);
    let body = json!({"prompt": [1, 2, 3], "temperature": 0, "ignore_eos": true});
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply["usage"]["total_tokens"], 64);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let reply = server.post("/completion", &body);
    assert_eq!(reply["tokens_predicted"], 61);
    assert_eq!(reply["truncated"], true);
}

/// A prompt that is evaluated in pieces, between the steps of other texts, changes no text.
#[test]
fn long_prompts_leave_other_texts_unchanged() {
    let (_dir, server) = Server::start(&["-np", "3", "-c", "1024"]);
    let long: Vec<u64> = (0..700).map(|i| 5 + i * 7 % 400).collect();
    let short = greedy(PROMPTS[0], 200);
    let long = |k: usize| {
        json!({
            "prompt": &long[k..], "max_tokens": 30, "temperature": 0, "echo": k == 0, "logprobs": 1,
            "logits_hash": true, "ignore_eos": true, "cache_prompt": false,
        })
    };
    let answers = |k: usize| server.post("/v1/completions", &long(k))["choices"].clone();
    let text = || server.post("/completion", &short)["content"].clone();
    let (alone, expected) = ([0, 1, 2].map(answers), text());
    assert_eq!(
        alone[0][0]["logprobs"]["tokens"].as_array().unwrap().len(),
        730
    );
    thread::scope(|scope| {
        for (k, expected) in alone.iter().enumerate() {
            let answers = &answers;
            scope.spawn(move || assert_eq!(&answers(k), expected, "{k}"));
        }
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(text(), expected));
        }
    });
}

/// After SIGTERM connections are refused, not left waiting, while open requests are answered.
#[test]
fn connections_are_refused_during_shutdown() {
    let (_dir, mut server) = Server::start(&[]);
    let mut stream = server.connect();
    let body = greedy("a", 4).to_string();
    let n = body.len();
    write!(
        stream,
        "POST /completion HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {n}\r\n\r\n"
    )
    .unwrap();
    // The handler waits for the body.
    let mut head = [0; 25];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.terminate();
    while TcpStream::connect(&server.address).is_ok() {}
    write!(stream, "{body}").unwrap();
    let (status, reply) = read_reply(stream);
    assert_eq!(status, 503, "{reply}");
    assert!(reply.contains("shutting down"), "{reply}");
    server.child.wait().unwrap();
}

/// SIGTERM ends the server although a client streams.
#[test]
fn a_stream_does_not_keep_the_server_alive() {
    let (_dir, server) = Server::start(&["--shutdown-timeout", "1"]);
    let mut stream = server.connect();
    let body =
        json!({"prompt": "a", "n_predict": -1, "ignore_eos": true, "stream": true}).to_string();
    let n = body.len();
    write!(
        stream,
        "POST /completion HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\n\r\n{body}"
    )
    .unwrap();
    let _ = stream.read(&mut [0; 64]).unwrap();
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < Duration::from_secs(10));
}
