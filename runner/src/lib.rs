//! Loads GGUF files and decodes them with speculation.

#![forbid(unsafe_code)]

pub mod hash;
pub mod prompts;
pub mod sample;
pub mod speculate;
pub mod tokenizer;
