//! Endpoints that describe the server: health, models, settings, slots, metrics.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use crate::error::ApiError;
use crate::slots::SlotState;

pub(super) async fn health(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    match app.shared.queue.is_closed() {
        true => Err(ApiError::busy("the server is shutting down")),
        false => Ok(Json(json!({"status": "ok"}))),
    }
}

pub(super) async fn models(State(app): State<App>) -> Json<Value> {
    let model = &app.model;
    let files = &app.files;
    Json(json!({
        "object": "list",
        "data": [{
            "id": model.id,
            "object": "model",
            "created": app.started,
            "owned_by": "specconv",
            "meta": {
                "n_vocab": files.model.hparams.n_vocab,
                "n_ctx": model.n_ctx,
                "n_ctx_train": files.model.hparams.n_ctx_train,
                "n_embd": files.model.hparams.n_embd,
                "n_params": model.n_params,
                "size": model.size,
            },
        }],
    }))
}

pub(super) async fn props(State(app): State<App>) -> Json<Value> {
    let (model, sample) = (&app.model, &app.sample);
    Json(json!({
        "default_generation_settings": {
            "n_ctx": model.n_ctx,
            "params": {
                "temperature": sample.temperature,
                "top_k": sample.top_k,
                "top_p": sample.top_p,
                "min_p": sample.min_p,
                "speculative.types": model.spec_types.join(","),
            },
        },
        "total_slots": model.n_slots,
        "model_alias": model.id,
        "chat_template": chat_template(&app),
        "modalities": {"vision": false, "audio": false},
        "backend": model.backend,
        "build_info": model.version,
        "is_sleeping": false,
    }))
}

/// Returns the source of the chat template, if there is one.
pub(super) fn chat_template(app: &App) -> Option<String> {
    let key = runner::chat::TEMPLATE_KEY;
    let own = || app.files.model.plan.metadata.str(key).ok().flatten();
    app.chat_template
        .clone()
        .or_else(|| own().map(str::to_owned))
}

pub(super) async fn set_props() -> ApiError {
    ApiError::not_supported("changing settings with POST /props")
}

#[derive(Deserialize)]
pub(super) struct SlotsQuery {
    fail_on_no_slot: Option<String>,
}

pub(super) async fn slots(
    State(app): State<App>,
    Query(query): Query<SlotsQuery>,
) -> Result<Json<Value>, ApiError> {
    let states = app.shared.slots.states();
    let is_idle = |state: &SlotState| *state == SlotState::Idle;
    if query.fail_on_no_slot.is_some() && !states.iter().any(is_idle) {
        return Err(ApiError::busy("no slot available"));
    }
    let slot = |(id, state): (usize, &SlotState)| {
        let mut slot = json!({
            "id": id,
            "n_ctx": app.model.n_ctx,
            "speculative": !app.model.spec_types.is_empty(),
            "is_processing": !is_idle(state),
        });
        if let SlotState::Busy { job, n_prompt } = state {
            slot["id_task"] = (*job).into();
            slot["n_prompt_tokens"] = (*n_prompt).into();
        }
        slot
    };
    Ok(Json(states.iter().enumerate().map(slot).collect()))
}

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let (n_busy, n_waiting) = (app.shared.slots.n_busy(), app.shared.queue.len());
    let text = app.shared.metrics.render(&app.model.id, n_busy, n_waiting);
    let headers = [
        (
            CONTENT_TYPE.as_str(),
            "text/plain; version=0.0.4".to_owned(),
        ),
        ("process-start-time-unix", app.started.to_string()),
    ];
    (headers, text).into_response()
}

pub(super) async fn version(State(app): State<App>) -> Json<Value> {
    Json(json!({"version": app.model.version}))
}
