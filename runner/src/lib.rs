//! Runs GGUF models and decodes with speculation.
//!
//! The path of a token: [`tokenizer`] → [`batch`] → [`context`] ([`model`] over its [`cache`]) →
//! [`sample`]; [`speculate`] drafts ahead of it. [`model_files`] opens files, [`loaded_models`] loads
//! their weights and builds drivers. This crate depends on the file formats, the architecture tables
//! and the kernels, but not on conversion or reports.
//!
//! # Example
//!
//! Continue a prompt, with drafts copied from earlier occurrences of the newest tokens:
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! # let mut plan = fixtures::all().next().ok_or("no fixture")?;
//! # plan.metadata.set("tokenizer.ggml.merges", Vec::<String>::new());
//! # let output = schemas::gguf::Output { plan: &plan, path: &path };
//! # schemas::gguf::write(&[output], &schemas::gguf::WriteConfig::new())?;
//! use std::sync::Arc;
//!
//! use kernels::cpu::{Cpu, CpuConfig};
//! use runner::loaded_models::load_driver;
//! use runner::model_files::{DraftFiles, Files};
//! use runner::run_config::RunConfig;
//! use runner::sample::{SampleConfig, Sampler};
//! use runner::speculate::{DecodeConfig, Request, SpecType};
//! use runner::tokenizer::{ControlText, EncodeConfig};
//!
//! let files = Files::open(&path, &DraftFiles::default())?;
//! let prompt = files.tokenizer.encode("once upon a time", EncodeConfig::PROMPT);
//! let requests = [Request::new("story", prompt, 16)];
//!
//! let backend = Arc::new(Cpu::new(CpuConfig::default())?);
//! let config = RunConfig::new(vec![SpecType::NgramSimple], files.n_ctx(&requests, None));
//! let mut driver = load_driver(&files, &backend, &config)?;
//!
//! let is_end = |token| files.tokenizer.is_end_of_generation(token);
//! let mut decode = DecodeConfig::new(Sampler::new(SampleConfig::GREEDY)?, &is_end);
//! let (completions, tally) = driver.decode(&requests, &mut decode)?;
//! let text = files.tokenizer.decode(&completions[0].tokens, ControlText::Skip);
//! assert_eq!(tally.n_tokens, completions[0].tokens.len() as u64);
//! # assert!(tally.n_tokens > 0 && !text.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A server keeps the driver: [`speculate::Driver::join`] starts a sequence with a prompt at any
//! time, [`speculate::Driver::round`] runs one pass over all sequences, and
//! [`speculate::Driver::leave`] ends one.

#![forbid(unsafe_code)]

pub mod batch;
pub mod cache;
pub mod chat;
pub mod context;
pub mod context_size;
pub mod error;
pub mod hash;
pub mod loaded_models;
pub mod memory;
mod memory_check;
pub mod model;
pub mod model_files;
pub mod observe;
pub mod rope_positions;
pub mod run_config;
pub mod sample;
pub mod speculate;
pub mod statistics;
pub mod tally;
pub mod tokenizer;

pub use error::{Error, ModelError};
