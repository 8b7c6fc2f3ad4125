//! Plans the conversion of an HF checkpoint folder to GGUF: returns a [`Plan`](schemas::gguf::Plan).
//!
//! [`plan()`] determines the whole contents of a file, in the order and with the values of llama.cpp's
//! `convert_hf_to_gguf.py`, so that files are byte-for-byte identical. Weights are not read: an unchanged
//! tensor is a range of a checkpoint file, any other is a [`Source`](schemas::gguf::Source) that streams
//! rows when a writer requests them.
//!
//! Modules form layers; each uses only those before it: `error` and `note`; `hf_config`, `quantization` and
//! `config`; `checkpoint`, which reads the weights' headers; `arch`, one file per architecture; `vocab` and
//! `general`, which create metadata; `gather`, which matches the architecture's table with the stored
//! tensors; `transform`, which changes values; `plan`. This crate does not know how files are written.
//!
//! # Differences from llama.cpp's converter
//!
//! This crate deviates from llama.cpp's converter where that would write a file that its own reader rejects,
//! or that computes something else:
//!
//! - The number of MTP layers is that of the stored tensors, whatever the config declares.
//! - A missing output head is an error if the config says that it is not tied.
//! - Weights beyond the range of the file's type are an error, not written as infinity.
//! - Two tokens with the same text, and RoPE scaling by tensors (longrope), are errors.
//! - If only a list of end-of-sequence tokens is given, the first is used.
//! - Ids of special tokens outside the vocabulary are left out.
//! - Every added token of `tokenizer.json` is kept, even if `tokenizer_config.json` omits it; the older
//!   `added_tokens.json` is read only with `tokenizer.model`, and `special_tokens_map.json` never is.
//! - SentencePiece's user-defined pieces keep that type. If there is only a `tokenizer.json`, piece scores
//!   are derived from its merges, and it is padded to the vocabulary; llama.cpp's converter gives all
//!   pieces one score, with which readers merge the wrong pieces.
//! - If a SentencePiece model adds no space prefix, the file states so.
//! - Named chat templates are sorted by name.
//! - An EAGLE-3 draft without `draft_vocab_size` has the target's whole vocabulary, and the layers it reads
//!   may be given in `eagle_config`; its vocabulary must have the target's size.
//! - No chat template is added to a checkpoint of DeepSeek V4 that has none, and its experts may be FP8 or BF16.
//! - The clusters of an assistant's tokens are kept if the config uses them.
//! - The language `no` in a model card is Norwegian, not a boolean.
//! - `-exp(A_log)` is correctly rounded; the other's math library is off by one unit in the last place in
//!   about one value of a hundred, depending on the CPU.

#![forbid(unsafe_code)]

mod arch;
mod card;
mod checkpoint;
mod class;
mod config;
mod decode;
mod error;
mod gather;
mod general;
mod hf_config;
mod indices;
mod joined;
mod model_id;
mod mtp;
mod note;
mod plan;
mod quantization;
mod range;
mod safetensors_header;
mod transform;
mod transpose;
mod vocab;

pub use checkpoint::{is_description, is_weights};
pub use class::supported_classes;
pub use config::{ConvertConfig, MtpMode, OutType, Remote, UnknownOutType, WeightFiles};
pub use error::{Error, Names};
pub use note::Note;
pub use plan::{Converted, plan};
pub use safetensors_header::HeaderError;
