//! What files look like. Three agreements between a producer and a consumer:
//! [`gguf`], the container; [`arch`], the tensors and keys of each architecture; [`report`], the
//! JSON results. Nothing here does arithmetic on weights, prints, or knows a command line.

pub mod arch;
pub mod gguf;
pub mod report;
