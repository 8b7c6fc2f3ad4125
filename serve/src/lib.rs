//! An HTTP server over the engine: llama-server's endpoints and OpenAI's.
//!
//! A request is read by a handler in [`routes`], which turns it into jobs; the [`engine`] thread decodes all
//! jobs in one pass per step and sends events back; [`reply`] turns these into JSON. Tokens and logits of a
//! request do not depend on what else the server is doing.

#![forbid(unsafe_code)]

mod auth;
mod connections;
mod engine;
mod error;
mod fields;
mod job;
mod logprobs;
mod metrics;
mod params;
mod prompt;
mod queue;
mod reasoning;
mod reply;
mod routes;
mod server;
mod slots;
mod state;
mod stop_strings;
mod token_text;

pub use auth::ApiKeys;
pub use server::{ServeError, ServerConfig, serve};
pub use state::Limits;
