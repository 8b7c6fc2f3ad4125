//! Chat: continued messages and reasoning.

use serde_json::{Value, json};

use super::server::Server;
use crate::util::root;

fn user() -> Value {
    json!({"role": "user", "content": "hi"})
}

/// Starts a server with a template that opens the reasoning in the generation prompt.
fn thinking() -> (crate::util::Dir, Server) {
    let template = root().join("tests/serve/thinking.jinja");
    Server::start(&["--chat-template-file", template.to_str().unwrap()])
}

fn prompt(server: &Server, body: &Value) -> String {
    let reply = server.post("/apply-template", body);
    reply["prompt"].as_str().unwrap().to_owned()
}

/// The prompts are those of llama-server.
#[test]
fn the_last_message_of_the_assistant_is_continued() {
    let (_dir, server) = Server::start(&[]);
    let assistant = |content: Value| json!({"role": "assistant", "content": content});
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let start = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    for (last, end) in [(json!("Hello wor"), "Hello wor"), (parts, "a\nb")] {
        let messages = json!({"messages": [user(), assistant(last)]});
        assert_eq!(prompt(&server, &messages), format!("{start}{end}"));
    }
    let bare = json!({"messages": [user()], "add_generation_prompt": false});
    assert_eq!(prompt(&server, &bare), "<|im_start|>user\nhi<|im_end|>\n");
    for (messages, field) in [
        (
            json!([user(), assistant("a".into()), assistant("b".into())]),
            "messages",
        ),
        (json!([user()]), "continue_final_message"),
    ] {
        let body = json!({"messages": messages, "continue_final_message": true}).to_string();
        let (status, error) = server.refused("/v1/chat/completions", &body);
        assert!(
            status == 400 && error["message"].as_str().unwrap().contains(field),
            "{error}"
        );
    }
    let body = json!({
        "messages": [user(), assistant("def f".into())], "max_tokens": 8, "temperature": 0,
    });
    let reply = server.post("/v1/chat/completions", &body);
    let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
    let tokens = json!({
        "prompt": format!("{start}def f"), "n_predict": 8, "temperature": 0,
    });
    let continued = server.post("/completion", &tokens)["content"].clone();
    assert_eq!(content, format!("def f{}", continued.as_str().unwrap()));
}

/// Reasoning is a field of its own, in replies and in streams.
#[test]
fn reasoning_is_separate_from_the_content() {
    let (_dir, server) = thinking();
    let assistant = |reasoning: &str, content: &str| json!({"role": "assistant", "reasoning_content": reasoning, "content": content});
    let begun = "<|im_start|>assistant\n<think>\n";
    for (messages, kwargs, end) in [
        (json!([user()]), true, begun.to_owned()),
        (json!([user()]), false, format!("{begun}\n</think>\n\n")),
        (
            json!([user(), assistant("", "x")]),
            true,
            format!("{begun}\n</think>\n\nx"),
        ),
        (
            json!([user(), assistant("", "x")]),
            false,
            format!("{begun}\n</think>\n\nx"),
        ),
        (
            json!([user(), assistant("a", "x")]),
            true,
            format!("{begun}a\n</think>\n\nx"),
        ),
        (
            json!([user(), assistant("a", "")]),
            true,
            format!("{begun}a"),
        ),
    ] {
        let mut body = json!({
            "messages": messages, "chat_template_kwargs": {"enable_thinking": kwargs},
        });
        let prompt = prompt(&server, &body);
        assert_eq!(prompt, format!("<|im_start|>user\nhi<|im_end|>\n{end}"));
        body["max_tokens"] = 6.into();
        body["temperature"] = 0.into();
        let message = |body: &Value| {
            server.post("/v1/chat/completions", body)["choices"][0]["message"].clone()
        };
        let split = message(&body);
        let last = messages.as_array().unwrap().last().unwrap();
        for name in ["reasoning_content", "content"] {
            let given = last[name].as_str().filter(|_| last["role"] == "assistant");
            let found = split[name].as_str().unwrap_or_default();
            assert!(found.starts_with(given.unwrap_or_default()), "{split}");
        }
        body["stream"] = true.into();
        let mut streamed = json!({"role": "assistant", "content": ""});
        for event in server.events("/v1/chat/completions", &body) {
            let Ok(chunk) = serde_json::from_str::<Value>(&event) else {
                assert_eq!(event, "[DONE]");
                continue;
            };
            for name in ["reasoning_content", "content"] {
                if let Some(piece) = chunk["choices"][0]["delta"][name].as_str() {
                    let text = streamed[name].as_str().unwrap_or_default().to_owned() + piece;
                    streamed[name] = text.into();
                }
            }
        }
        assert_eq!(streamed, split);
        body["stream"] = false.into();
        body["reasoning_format"] = "none".into();
        let whole = message(&body);
        assert!(whole["reasoning_content"].is_null());
        let text = whole["content"].as_str().unwrap();
        let opening = end.strip_prefix("<|im_start|>assistant\n").unwrap();
        assert!(text.starts_with(opening), "{text}");
    }
}
