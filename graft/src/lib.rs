//! Splits and grafts draft heads: GGUF plans in, GGUF plans out.
//!
//! Tensors are copied byte for byte, so any element type is supported, unknown ones included; only
//! [`pair`] reads values. The tensors of a head are listed in [`schemas::arch::nextn`].

#![forbid(unsafe_code)]

mod d2t;
mod error;
mod model;
mod mtp;
mod pairing;
mod repair;
mod translate;

pub use d2t::{
    MapKind, StoredMap, Trimmed, VocabError, graft_vocab, most_frequent, proposable,
    special_tokens, split_vocab, trim_draft, trim_mtp,
};
pub use error::{Error, Role};
pub use mtp::{
    Embeddings, FORCED, GraftConfig, Split, TENSOR_POSITIONS, graft_mtp, head_layers, replace_mtp,
    split_mtp,
};
pub use pairing::pair;
pub use repair::{Repaired, repair_mtp};
pub use schemas::arch::mtp_layout::{Fault, diagnose};
pub use translate::{Coverage, Side, TokenText, map_vocab};
