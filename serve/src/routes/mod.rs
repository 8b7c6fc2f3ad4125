//! The endpoints, one file per group. [`ROUTES`] is the list of all of them.

mod chat;
mod completion;
mod completions;
mod info;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequest, Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use crate::error::ApiError;
use crate::state::AppState;

type App = Arc<AppState>;

/// An endpoint: its paths and handler.
struct Route {
    paths: &'static [&'static str],
    handler: fn() -> MethodRouter<App>,
    /// Answers without an API key.
    is_public: bool,
}

const fn route(paths: &'static [&'static str], handler: fn() -> MethodRouter<App>) -> Route {
    Route {
        paths,
        handler,
        is_public: false,
    }
}

/// All endpoints.
const ROUTES: [Route; 15] = [
    Route {
        is_public: true,
        ..route(&["/health", "/v1/health"], || get(info::health))
    },
    route(&["/v1/models", "/models"], || get(info::models)),
    route(&["/props"], || get(info::props).post(info::set_props)),
    route(&["/slots"], || get(info::slots)),
    route(&["/metrics"], || get(info::metrics)),
    route(&["/version"], || get(info::version)),
    route(&["/tokenizer_info"], || get(tokens::tokenizer_info)),
    route(&["/tokenize"], || post(tokens::tokenize)),
    route(&["/detokenize"], || post(tokens::detokenize)),
    route(&["/apply-template"], || post(tokens::apply_template)),
    route(&["/v1/chat/completions/input_tokens"], || {
        post(tokens::input_tokens)
    }),
    route(&["/completion", "/completions"], || {
        post(completion::completion)
    }),
    route(&["/v1/completions"], || post(completions::completions)),
    route(&["/v1/chat/completions", "/chat/completions"], || {
        post(chat::chat_completions)
    }),
    route(&NOT_SUPPORTED, || post(not_supported).get(not_supported)),
];

/// Endpoints of llama-server that this server does not have.
const NOT_SUPPORTED: [&str; 14] = [
    "/embedding",
    "/embeddings",
    "/v1/embeddings",
    "/infill",
    "/rerank",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio/transcriptions",
    "/lora-adapters",
    "/v1/systemone",
    "/slots/{id}",
];

/// Returns the router of all endpoints.
pub(crate) fn router(state: App) -> Router {
    let mut router = Router::new();
    for route in &ROUTES {
        for path in route.paths {
            router = router.route(path, (route.handler)());
        }
    }
    router
        .fallback(|| async { ApiError::not_found() })
        .method_not_allowed_fallback(|| async { ApiError::method() })
        .layer(middleware::from_fn_with_state(
            Arc::clone(&state),
            authorize,
        ))
        .with_state(state)
}

/// Rejects requests without a valid key.
async fn authorize(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_public = |route: &&Route| route.is_public && route.paths.contains(&path);
    if ROUTES.iter().any(|route| is_public(&route)) || app.keys.accept(request.headers()) {
        return next.run(request).await;
    }
    ApiError::unauthorized().into_response()
}

async fn not_supported(method: Method, request: Request) -> ApiError {
    ApiError::not_supported(&format!("{method} {}", request.uri().path()))
}

/// A request body in JSON, whatever its content type says.
struct Json(Value);

impl FromRequest<App> for Json {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &App) -> Result<Json, ApiError> {
        let limit = app.limits.max_body;
        let body = Limited::new(request.into_body(), limit).collect();
        let body = tokio::time::timeout(app.limits.body_timeout, body).await;
        let body = body.map_err(|_| ApiError::body_timeout())?;
        let body = body.map_err(|_| ApiError::too_large(limit))?.to_bytes();
        match serde_json::from_slice(&body) {
            Ok(value) => Ok(Json(value)),
            Err(error) => Err(ApiError::invalid(format!("request body: {error}"))),
        }
    }
}

/// Runs work that takes long for a handler, such as tokenizing a long prompt, on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::server("the request could not be processed")),
    }
}
