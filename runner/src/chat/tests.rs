use serde::Deserialize;

use super::*;

fn now() -> DateTime<FixedOffset> {
    DateTime::parse_from_rfc3339("2026-03-04T05:06:07+00:00").unwrap()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>", now()).unwrap()
}

fn rendered(source: &str) -> Result<String, ChatError> {
    template(source).render(&Conversation::of_user("hello"))
}

/// A case from tests/reference/chat.
#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<Value>,
    #[serde(default)]
    kwargs: Map<String, Value>,
    rendered: Option<String>,
    refused: Option<String>,
}

#[test]
fn texts_are_those_of_jinja2() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference/chat");
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&read("expected.json")).unwrap();
    assert!(cases.len() > 15);
    for (i, case) in cases.into_iter().enumerate() {
        let template = template(&read(&format!("{}.jinja", case.template)));
        let found = template.render(&Conversation {
            messages: case.messages,
            tools: case.tools,
            kwargs: case.kwargs,
        });
        match case.refused {
            None => assert_eq!(found.ok(), case.rendered, "case {i}, {}", case.template),
            Some(refused) => {
                let expected = format!("chat template refuses the conversation: {refused}");
                assert_eq!(found.unwrap_err().to_string(), expected, "case {i}");
            }
        }
    }
}

/// Templates come with downloaded files: none may hang, exhaust memory, or end the program.
#[test]
fn hostile_templates_are_stopped() {
    let nested = "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let doubled = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ ('a' * 100000).join(range(100000) | list) }}",
        "{{ ('a' * 1000000).replace('a', 'a' * 1000) }}",
        "{{ '{:>900000000}'.format('a') }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        &format!("{nested}{{{{ ns.x | tojson }}}}"),
        &format!("{doubled}{{{{ ns.x }}}}"),
        &format!("{doubled}{{{{ ns.x | string }}}}"),
        "{{ [].append(1) }}",
        "{% include 'x' %}",
        "{{ 1 | no_such_filter }}",
    ] {
        let short: String = source.chars().take(80).collect();
        assert!(rendered(source).is_err(), "{short}");
    }
    // Deep nesting alone is rendered, or rejected by the parser.
    assert_eq!(rendered(&format!("{nested}x")).unwrap(), "x");
    assert_eq!(
        rendered(&format!("{{{{ {}1 }}}}", "-".repeat(100_000))).unwrap(),
        "1"
    );
    let parens = format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
    for source in [
        parens,
        "{% for".to_owned(),
        "x".repeat(MAX_SOURCE_BYTES + 1),
    ] {
        assert!(ChatTemplate::new(&source, "", "", now()).is_err());
    }
}

#[test]
fn errors_name_the_line() {
    let error = rendered("a\n{{ 1 + [] }}").unwrap_err().to_string();
    assert!(
        error.starts_with("chat template: line 2: invalid operation"),
        "{error}"
    );
    let endless = rendered(
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    );
    assert!(matches!(endless, Err(ChatError::OutOfFuel)));
}

#[test]
fn malformed_messages_are_named() {
    for (messages, expected) in [
        (json!([]), "messages: empty, expected a message or more"),
        (
            json!(["hi"]),
            "messages[0]: expected an object with role and content",
        ),
        (
            json!([{"content": "x"}]),
            "messages[0]: role is missing, expected a text such as \"user\"",
        ),
        (
            json!([{"role": "user", "content": "x"}, {"role": "assistant"}]),
            "messages[1]: content: expected a text or an array of text parts",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
            "messages[0]: content: expected parts of type \"text\" only",
        ),
    ] {
        let conversation = Conversation {
            messages: messages.as_array().unwrap().clone(),
            ..Conversation::default()
        };
        let error = template("x").render(&conversation).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}
