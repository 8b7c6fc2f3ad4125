//! [`ApiError`]: the errors that clients see, in the JSON form of llama-server and OpenAI.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

/// An error response: `{"error": {"code", "type", "message"}}`.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// Additional fields of the error object.
    details: Map<String, Value>,
}

/// openai-python retries 409, 429 and every status from 500 up unless this header says otherwise.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind,
            message: message.into(),
            details: Map::new(),
        }
    }

    /// The request is malformed, or asks for something that is not supported.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The prompt does not fit into the context of a slot.
    pub(crate) fn context_size(n_prompt: usize, n_ctx: usize) -> ApiError {
        let message = format!(
            "the prompt has {n_prompt} tokens, expected fewer than the context size {n_ctx}. Shorten it, or start \
             the server with a larger --ctx-size"
        );
        let mut error = ApiError::new(
            StatusCode::BAD_REQUEST,
            "exceed_context_size_error",
            message,
        );
        error
            .details
            .insert("n_prompt_tokens".into(), n_prompt.into());
        error.details.insert("n_ctx".into(), n_ctx.into());
        error
    }

    /// The API key is missing or wrong.
    pub(crate) fn unauthorized() -> ApiError {
        let kind = "authentication_error";
        ApiError::new(StatusCode::UNAUTHORIZED, kind, "Invalid API Key")
    }

    /// No such path.
    pub(crate) fn not_found() -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", "File Not Found")
    }

    /// The path exists for another method.
    pub(crate) fn method() -> ApiError {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        ApiError::new(status, "invalid_request_error", "method not allowed")
    }

    /// The request body exceeds the limit.
    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the request body exceeds {limit} bytes");
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            message,
        )
    }

    /// The request body did not arrive in time.
    pub(crate) fn body_timeout() -> ApiError {
        let message = "the request body did not arrive in time";
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            message,
        )
    }

    /// The endpoint exists in llama-server but not here.
    pub(crate) fn not_supported(what: &str) -> ApiError {
        let message = format!("{what} is not supported by this server");
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// The queue is full, or no slot is free for a request that does not wait.
    pub(crate) fn busy(message: impl Into<String>) -> ApiError {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable_error",
            message,
        )
    }

    /// Decoding failed.
    pub(crate) fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Returns the JSON body, also used as an event inside a stream.
    pub(crate) fn body(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".into(), self.status.as_u16().into());
        error.insert("message".into(), self.message.clone().into());
        error.insert("type".into(), self.kind.into());
        error.extend(self.details.clone());
        json!({ "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert("retry-after", HeaderValue::from_static("1"));
            }
            StatusCode::NOT_IMPLEMENTED | StatusCode::INTERNAL_SERVER_ERROR => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            _ => {}
        }
        response
    }
}
