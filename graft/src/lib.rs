//! Splits and grafts speculative heads: GGUF plans in, GGUF plans out.
//!
//! A tensor's bytes are never looked at, only carried, so files of any element type can be cut and
//! joined, types unknown to us included. What a head consists of stands in [`schemas::arch`].

#![forbid(unsafe_code)]

mod compat;
mod error;
mod mtp;

pub use error::{Error, Role};
pub use mtp::{Split, TENSOR_POSITIONS, graft_mtp, split_mtp};
