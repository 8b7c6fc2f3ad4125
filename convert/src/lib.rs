//! From an HF checkpoint folder to a GGUF [`Plan`](schemas::gguf::Plan).
//!
//! [`plan()`] decides everything a file will hold, in the order and with the values of
//! llama.cpp's `convert_hf_to_gguf.py`, so that whole files come out byte for byte the same.
//! Weights stay where they lie: a tensor whose values do not change is a part of a file of the
//! checkpoint, any other is a [`Source`](schemas::gguf::Source) that streams row by row once a
//! writer asks.
//!
//! The data goes one way: `hf_config`, `quantization` and `checkpoint` read the folder, `keys`, `vocab`
//! and `general` make the metadata, `gather` joins the architecture's table with the tensors found,
//! `plan` decides their types, `transform` changes values. Nothing here knows how files are written.
//!
//! # Departures
//!
//! Where the other converter would write a file that its own reader refuses, or one that computes
//! something else, this one does not follow:
//!
//! - The number of MTP layers is that of the tensors, whatever the config declares.
//! - An absent output head is refused where the config says that it is not tied.
//! - Weights that the file's type cannot hold are refused, not written as infinity.
//! - Two tokens of the same text, and scaling of rotation by tensors (longrope), are refused.
//! - Of a list of end tokens the first is taken, where nothing else names one.
//! - Ids of special tokens that are no tokens are left out.
//! - Every added token of `tokenizer.json` is kept, also where `tokenizer_config.json` omits it;
//!   the older `added_tokens.json` is read beside `tokenizer.model` alone, and
//!   `special_tokens_map.json` is not.
//! - Pieces that SentencePiece calls user-defined are so in the file. Where there is only a
//!   `tokenizer.json` the scores of its pieces follow from its merges, and it is padded to the
//!   vocabulary; the other gives all pieces one score, by which readers merge the wrong ones.
//! - Where a SentencePiece model puts no space before texts, the file says so.
//! - Named chat templates are listed in order of name.
//! - An EAGLE-3 draft without `draft_vocab_size` has the target's whole vocabulary, and the layers
//!   it sees may stand in `eagle_config`; its vocabulary must have the target's size.
//! - The language `no` in a model card is Norwegian.
//! - `-exp(A_log)` is the rounded one; the other's math library is off by a unit in the last place
//!   in about one value of a hundred, which ones depending on the processor.

#![forbid(unsafe_code)]

mod card;
mod checkpoint;
mod class;
mod config;
mod decode;
mod eagle3;
mod error;
mod gather;
mod general;
mod hf_config;
mod keys;
mod model_id;
mod mtp;
mod note;
mod plan;
mod quantization;
mod transform;
mod transpose;
mod vocab;

pub use checkpoint::{HeaderError, is_description, is_weights};
pub use class::supported_classes;
pub use config::{ConvertConfig, MtpMode, OutType, Remote, UnknownOutType, WeightFiles};
pub use error::{Error, Names};
pub use note::Note;
pub use plan::{Converted, plan};
