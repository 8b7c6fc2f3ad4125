//! Every speculator on every architecture that can use it: tokens and logits are those of plain
//! decoding, bit for bit, for any draft length, any number of sequences, and any rejected position.

mod chains;
/// Assistants that score only some tokens.
mod clusters;
mod embeddings;
mod identity;
mod known_text;
mod mock;
mod recorder;
mod rejection;
mod sequences;
mod setup;
mod trouble;
