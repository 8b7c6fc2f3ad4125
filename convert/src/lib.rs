//! From an HF checkpoint folder to a GGUF [`Plan`](schemas::gguf::Plan).
//!
//! [`plan()`] decides everything a file will hold, in the order and with the values of
//! llama.cpp's `convert_hf_to_gguf.py`, so that whole files come out byte for byte the same.
//! Weights stay where they lie: a tensor whose values do not change is a view of the mapped
//! checkpoint, any other is a [`Source`](schemas::gguf::Source) that streams row by row once a
//! writer asks.
//!
//! The data goes one way: [`hf_config`] and [`checkpoint`] read the folder, [`keys`], [`vocab`]
//! and [`general`] make the metadata, [`plan`](mod@plan) joins the architecture's table with the
//! tensors found, [`transform`] changes values. Nothing here knows how files are written.

#![forbid(unsafe_code)]

mod card;
mod checkpoint;
mod config;
mod error;
mod general;
mod hf_config;
mod keys;
mod model_id;
mod mtp;
mod note;
mod plan;
mod transform;
mod vocab;

pub use config::{ConvertConfig, MtpMode, OutType, UnknownOutType};
pub use error::{Error, Names};
pub use note::Note;
pub use plan::{Converted, plan};
