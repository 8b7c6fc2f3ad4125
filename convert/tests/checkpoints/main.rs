//! Conversion of changed checkpoints, and of their tokenizers.

/// Drafts that attend to keys and values of a target.
mod assistants;
mod checkpoint;
/// Settings and tensors of DeepSeek V4.
mod deepseek4;
/// Drafts that read a target's hidden states.
mod drafts;
/// Damaged files.
mod hostile;
/// Kimi's classes, and the router of GLM 4.7 Flash.
mod kimi;
/// Error messages and notes.
mod refusals;
/// FP8 weights and their scales.
mod scaled;
/// Tokenization with a file's keys alone.
mod tokenizer;
/// Modified configs, weights, tokenizers and cards, compared with llama.cpp's files.
mod variants;
/// Layers with a sliding window.
mod windows;
