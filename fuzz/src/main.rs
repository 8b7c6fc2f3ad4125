//! Fuzz targets: arbitrary bytes in place of a file or a server response. Each run must return a result or
//! an error; a panic, an out-of-bounds access or an endless loop is a finding.
//!
//! One program holds all targets, so that CI links it once; `FUZZ_TARGET` names the one to run.
#![no_main]

mod chat;
mod files;
mod hub;
mod loopback;
mod model;
mod server;

use std::sync::OnceLock;

/// Name of the target and of its seed folder, and the function that takes the bytes.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 16] = [
    ("gguf", files::gguf),
    ("safetensors", files::safetensors),
    ("config", files::config),
    ("tokenizer", files::tokenizer),
    ("sentencepiece", files::sentencepiece),
    ("imatrix", files::imatrix),
    ("recipe", files::recipe),
    ("lookup", files::lookup),
    ("logits", files::logits),
    ("vocab_map", files::vocab_map),
    ("draft_map", files::draft_map),
    ("embeddings", files::embeddings),
    ("chat", chat::rendered),
    ("hub", hub::answer),
    ("server", server::checked),
    ("model", model::edited),
];

/// Returns the target named by `FUZZ_TARGET`.
fn target() -> fn(&[u8]) {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let names = TARGETS.map(|(name, _)| name).join(", ");
        let (_, target) = found.unwrap_or_else(|| panic!("FUZZ_TARGET: expected one of {names}"));
        *target
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target()(bytes));
