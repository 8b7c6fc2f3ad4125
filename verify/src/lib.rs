//! Checks and measurements of models and their speculators.
//!
//! [`verify()`] proves that speculation changes nothing but the speed: [`preflight`] reads the
//! files, then [`checks`] compare every text with plain decoding, bit for bit. [`bench`](mod@bench),
//! [`prefill`](mod@prefill) and [`tasks`](mod@tasks) measure speed, [`perplexity`](mod@perplexity),
//! [`divergence`](mod@divergence) and [`logits`](mod@logits) score texts, [`imatrix`] collects importance matrices,
//! [`memory_plan`] computes the memory of a run, [`conformance`] runs traces for other engines, [`best_draft`] chooses a speculator from a report. All results
//! are reports of [`schemas::report`]. The engine, crate [`runner`], does not know this crate.

#![forbid(unsafe_code)]

pub mod bench;
pub mod best_draft;
pub mod checks;
pub mod conformance;
pub mod cpu_model;
pub mod divergence;
mod embeddings;
pub mod error;
pub mod imatrix;
pub mod logits;
pub mod loops;
pub mod memory_plan;
pub mod perplexity;
pub mod prefill;
pub mod preflight;
pub mod prompts;
pub mod report;
mod scores;
pub mod server;
mod spread;
pub mod tasks;

pub use checks::{DecodeOptions, Machine, Stage, VerifyConfig, verify};
pub use error::Error;
