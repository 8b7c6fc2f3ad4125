//! Speculation: cheap guesses at the next tokens, and the rule that keeps only those the target
//! would have chosen itself.

pub mod accept;
pub mod ngram_map;
pub mod ngram_mod;
pub mod ngram_simple;
#[cfg(test)]
mod replay;
