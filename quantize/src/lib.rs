//! GGUF to GGUF in another type: a plan in, a plan out.
//!
//! Which tensor gets which type is decided from names, shapes and keys alone, before any weight is
//! read; weights are recoded row by row when the result is written. Types, order, keys and bytes
//! are those of `llama-quantize` (b11434), so that its files can be checked against ours.

#![forbid(unsafe_code)]

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

pub use error::{Error, InvalidData, Stage};
pub use ftype::{FType, UnknownFType};
pub use imatrix::{Imatrix, ImatrixError};
pub use measure::Measure;
pub use mix::Reason;
pub use nearest::nearest;
pub use plan::{Decision, QuantizeConfig, Quantized, decide, plan};
pub use rule::{KeyOverride, RuleError, TypeRule, UnknownType, parse_type};
