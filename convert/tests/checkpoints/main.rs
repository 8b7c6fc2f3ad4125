//! Conversion of changed checkpoints, and of their tokenizers.

mod checkpoint;
/// Drafts that see a target's hidden states.
mod drafts;
/// Damaged files.
mod hostile;
/// Messages: why not, or what to know.
mod refusals;
/// FP8 weights and their scales.
mod scaled;
/// Texts to tokens by a file's keys alone.
mod tokenizer;
/// Changed configs, weights, tokenizers and cards against llama.cpp's files.
mod variants;
/// Layers with a window.
mod windows;
