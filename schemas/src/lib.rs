//! File formats that the crates exchange: [`gguf`], the container; [`arch`], tensors and keys of
//! each architecture; [`vocab`], maps between vocabularies; [`report`], JSON results. [`input`]
//! reads files up to a size limit, [`outfile`] publishes outputs, and [`threads`] runs work on
//! several threads. This crate does no arithmetic on weights, prints nothing, and has no command
//! line.

pub mod arch;
pub mod gguf;
pub mod input;
pub mod outfile;
pub mod progress;
pub mod report;
pub mod threads;
pub mod vocab;
