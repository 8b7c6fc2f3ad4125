//! Endpoints around the tokenizer and the chat template.

use axum::extract::State;
use runner::tokenizer::{ControlText, EncodeConfig};
use serde_json::{Value, json};

use super::{App, Json, blocking, chat, info};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::prompt;

type Reply = Result<axum::Json<Value>, ApiError>;

/// `content` and `add_special` are llama-server's names, `prompt` and `add_special_tokens` vLLM's.
pub(super) async fn tokenize(State(app): State<App>, Json(body): Json) -> Reply {
    blocking(move || {
        let fields = Fields::of(&body)?;
        let tokenizer = &app.files.tokenizer;
        let add_special = fields.boolean("add_special")?;
        let add_special = add_special.or(fields.boolean("add_special_tokens")?);
        let config = EncodeConfig {
            add_special: add_special.unwrap_or(false),
            parse_special: fields.boolean("parse_special")?.unwrap_or(true),
        };
        let tokens = match fields.get("content").or(fields.get("prompt")) {
            None => Vec::new(),
            Some(Value::String(text)) => tokenizer.encode(text, config),
            Some(parts) => prompt::one(parts, tokenizer)?,
        };
        if fields.boolean("with_pieces")?.unwrap_or(false) {
            let piece = |&id: &u32| {
                let bytes = tokenizer.token_bytes(id);
                let piece = std::str::from_utf8(bytes).map_or(json!(bytes), |text| json!(text));
                json!({"id": id, "piece": piece})
            };
            let tokens: Vec<Value> = tokens.iter().map(piece).collect();
            return Ok(axum::Json(json!({ "tokens": tokens })));
        }
        let mut reply = json!({ "tokens": tokens });
        if fields.get("prompt").is_some() {
            reply["count"] = tokens.len().into();
            reply["max_model_len"] = app.model.n_ctx.into();
        }
        Ok(axum::Json(reply))
    })
    .await
}

pub(super) async fn detokenize(State(app): State<App>, Json(body): Json) -> Reply {
    blocking(move || {
        let fields = Fields::of(&body)?;
        let tokenizer = &app.files.tokenizer;
        let tokens = fields.array("tokens")?.map_or(&[][..], Vec::as_slice);
        let tokens: Result<Vec<u32>, ApiError> = tokens
            .iter()
            .map(|token| prompt::token(token, tokenizer))
            .collect();
        let text = tokenizer.decode(&tokens?, ControlText::Show);
        Ok(axum::Json(json!({"content": text, "prompt": text})))
    })
    .await
}

pub(super) async fn tokenizer_info(State(app): State<App>) -> Reply {
    let tokenizer = &app.files.tokenizer;
    let text = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id], ControlText::Show));
    Ok(axum::Json(json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "pad_token": Value::Null,
        "chat_template": info::chat_template(&app),
    })))
}

pub(super) async fn apply_template(State(app): State<App>, Json(body): Json) -> Reply {
    blocking(move || {
        let rendered = chat::render(&app, Fields::of(&body)?, false)?;
        Ok(axum::Json(json!({ "prompt": rendered.prompt })))
    })
    .await
}

pub(super) async fn input_tokens(State(app): State<App>, Json(body): Json) -> Reply {
    blocking(move || {
        let rendered = chat::render(&app, Fields::of(&body)?, true)?;
        let tokens = chat::encode(&app, &rendered.prompt);
        Ok(axum::Json(json!({
            "object": "response.input_tokens",
            "input_tokens": tokens.len(),
        })))
    })
    .await
}
