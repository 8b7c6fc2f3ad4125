//! Any bytes are a GGUF file or an error, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = schemas::gguf::check(bytes);
});
