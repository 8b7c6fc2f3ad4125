//! Quantizes GGUF files: a plan in, a plan out.
//!
//! The type of each tensor is decided from names, shapes and keys, before any weight is read;
//! weights are quantized row by row when the result is written. Types, order, keys and bytes are
//! those of `llama-quantize` (b11434), so that the files of both can be compared.

#![forbid(unsafe_code)]

mod config;
mod error;
mod ftype;
pub mod imatrix;
mod measure;
mod mix;
mod nearest;
mod plan;
mod prune;
mod rule;
mod source;

pub use config::QuantizeConfig;
pub use error::{Error, InvalidData, Stage};
pub use ftype::{FType, UnknownFType, file_type_name};
pub use imatrix::{Imatrix, ImatrixError};
pub use measure::Measure;
pub use mix::Reason;
pub use nearest::nearest;
pub use plan::{Decision, Quantized, decide, plan};
pub use rule::{KeyOverride, RuleError, TypeRule, UnknownType, parse_type};
