//! Runs GGUF models and decodes with speculation.
//!
//! The path of a token: [`tokenizer`] → [`batch`] → [`context`] ([`model`] over its [`cache`]) →
//! [`sample`]; [`speculate`] drafts ahead of it. [`load`] opens files and builds a driver, and
//! [`verify()`] proves its results. This crate depends on the file formats, the architecture tables
//! and the kernels, but not on conversion.

#![forbid(unsafe_code)]

pub mod batch;
pub mod bench;
pub mod cache;
pub mod chat;
pub mod context;
pub mod cpu_model;
pub mod error;
pub mod fit;
pub mod hash;
pub mod load;
pub mod loaded;
pub mod logits;
pub mod loops;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod perplexity;
pub mod plan;
pub mod prefill;
pub mod prompts;
mod room;
pub mod sample;
mod scores;
pub mod sizes;
pub mod speculate;
mod spread;
pub mod tasks;
pub mod tokenizer;
pub mod verify;

pub use error::{Error, ModelError};
pub use verify::{Machine, Stage, VerifyConfig, Way, verify};
