//! Chat templates, which come with model files.

use runner::chat::{ChatTemplate, Conversation, clock};
use serde_json::{Value, json};

use crate::Run;

pub(crate) fn rendered() -> Run {
    Box::new(render)
}

/// Renders a conversation that has all that templates look for.
fn render(bytes: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(bytes) else {
        return false;
    };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>", clock(Some(0))) else {
        return false;
    };
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    let call = json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let message = |role: &str, content: Value| json!({"role": role, "content": content});
    let mut answer = message("assistant", Value::Null);
    answer["tool_calls"] = json!([call]);
    answer["reasoning_content"] = json!("because");
    let rendered = template.render(&Conversation {
        messages: vec![
            message("system", json!("Be brief.")),
            message(
                "user",
                json!([{"type": "text", "text": "Hi \u{e9}\u{1f600}"}]),
            ),
            answer,
            message("tool", json!("1")),
        ],
        tools: vec![json!({"type": "function", "function": function})],
        ..Conversation::default()
    });
    rendered.is_ok()
}
