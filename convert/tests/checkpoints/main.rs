//! Conversion of changed checkpoints, and of their tokenizers.

mod checkpoint;
/// Damaged files.
mod hostile;
/// Messages: why not, or what to know.
mod refusals;
/// Texts to tokens by a file's keys alone.
mod tokenizer;
/// Changed configs, weights, tokenizers and cards against llama.cpp's files.
mod variants;
