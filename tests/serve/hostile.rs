//! Hostile request bodies: each is answered or refused, and disturbs no other request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::server::Server;
use super::{PROMPTS, greedy};

/// Endpoints with a body.
const PATHS: [&str; 8] = [
    "/completion",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/apply-template",
    "/tokenize",
    "/detokenize",
    "/props",
];

/// Fields that some endpoint reads, or refuses.
const FIELDS: [&str; 45] = [
    "prompt",
    "prompt_string",
    "messages",
    "role",
    "content",
    "reasoning_content",
    "type",
    "text",
    "tokens",
    "n_predict",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "include_usage",
    "continuous_usage_stats",
    "n",
    "best_of",
    "echo",
    "logprobs",
    "top_logprobs",
    "n_probs",
    "ignore_eos",
    "cache_prompt",
    "id_slot",
    "return_tokens",
    "logits_hash",
    "speculative",
    "speculative.n_max",
    "chat_template_kwargs",
    "enable_thinking",
    "add_generation_prompt",
    "continue_final_message",
    "reasoning_format",
    "reasoning_effort",
    "logit_bias",
    "grammar",
    "tools",
    "response_format",
    "repeat_penalty",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("<|im_start|>assistant\n<think>".to_owned()),
        Just("{{ messages }}{% for".to_owned()),
        Just("user".to_owned()),
        Just("text".to_owned()),
        any::<String>(),
    ]
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![0i64, 1, -1, 2, 20, 21, 2048, i64::MAX, i64::MIN])
            .prop_map(Value::from),
        Just(u64::MAX.into()),
        Just(u32::MAX.into()),
        prop::sample::select(vec![0.5, -0.0, 1e308, -1e-308, 1.7]).prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let name = prop::sample::select(&FIELDS[..]).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..5).prop_map(|fields| {
                let fields: serde_json::Map<String, Value> = fields.into_iter().collect();
                fields.into()
            }),
        ]
    })
}

/// A valid request with some fields replaced, as text that may be cut.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(&FIELDS[..]);
    let fields = prop::collection::vec((name, value()), 0..4);
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    let valid = any::<bool>();
    (valid, fields, cut).prop_map(|(is_valid, fields, cut)| {
        let mut body = match is_valid {
            true => json!({
                "prompt": "a", "messages": [{"role": "user", "content": "a"}], "n_predict": 3,
                "tokens": [1],
            }),
            false => json!({}),
        };
        for (name, value) in fields {
            body[name] = value;
        }
        let mut bytes = body.to_string().into_bytes();
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
            bytes.push(0xff);
        }
        bytes
    })
}

#[test]
fn hostile_bodies_are_answered_or_refused() {
    let (_dir, server) = Server::start(&["-np", "2", "-c", "64"]);
    let request = greedy(PROMPTS[0], 20);
    let expected = server.post("/completion", &request)["content"].clone();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (server, is_over) = (&server, &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(server.post("/completion", &request)["content"], expected);
            }
        });
        let cases = (prop::sample::select(&PATHS[..]), body());
        let mut runner = TestRunner::new(ProptestConfig {
            cases: 400,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let result = runner.run(&cases, |(path, body)| {
            let (status, reply) = server.send("POST", path, "", &body);
            let shown = String::from_utf8_lossy(&body).into_owned();
            prop_assert!(
                matches!(status, 200 | 400 | 413) || (path, status) == ("/props", 501),
                "{path} {status}: {shown}: {reply}"
            );
            prop_assert!(!reply.contains("server_error"), "{path}: {shown}: {reply}");
            let is_json = serde_json::from_slice::<Value>(&body).is_ok();
            prop_assert!(is_json || status != 200, "{path}: {shown}: {reply}");
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        result.unwrap();
    });
}
