//! What files look like. Four agreements between a producer and a consumer:
//! [`gguf`], the container; [`arch`], the tensors and keys of each architecture; [`vocab`], maps
//! between vocabularies; [`report`], the JSON results. [`input`] reads files of limited size and [`threads`] runs work, both for all crates.
//! Nothing here does arithmetic on weights, prints, or knows a command line.

pub mod arch;
pub mod gguf;
pub mod input;
pub mod outfile;
pub mod report;
pub mod threads;
pub mod vocab;
