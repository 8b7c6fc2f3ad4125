//! Fuzz targets: arbitrary bytes in place of a file or a server response. Each run must return a result or
//! an error; a panic, an out-of-bounds access or an endless loop is a finding.
//!
//! `fuzz/run` searches for new inputs with libFuzzer; `fuzz/tests/changed_seeds.rs` tries some at random.
#![forbid(unsafe_code)]

mod chat;
mod files;
mod hub;
mod loopback;
mod model;
mod server;

/// Passes an input to the code under test; true if it is accepted. Owns what all runs share.
pub type Run = Box<dyn Fn(&[u8]) -> bool>;

/// Code that reads bytes of others.
pub struct Target {
    /// Name of the target and of its folder in `fuzz/seeds`.
    pub name: &'static str,
    /// Makes what all runs share.
    pub prepare: fn() -> Run,
}

/// All targets.
pub const TARGETS: [Target; 16] = [
    target("gguf", files::gguf),
    target("safetensors", files::safetensors),
    target("config", files::config),
    target("tokenizer", files::tokenizer),
    target("sentencepiece", files::sentencepiece),
    target("imatrix", files::imatrix),
    target("recipe", files::recipe),
    target("lookup", files::lookup),
    target("logits", files::logits),
    target("vocab_map", files::vocab_map),
    target("draft_map", files::draft_map),
    target("embeddings", files::embeddings),
    target("chat", chat::rendered),
    target("hub", hub::answer),
    target("server", server::checked),
    target("model", model::edited),
];

const fn target(name: &'static str, prepare: fn() -> Run) -> Target {
    Target { name, prepare }
}
