//! Notes: facts about a successful conversion that the user should know.

use std::fmt;

use crate::error::Names;

/// A fact about a successful conversion that the user should know.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields say what the message says")]
pub enum Note {
    /// Fields absent from the config, filled with defaults.
    Defaults { fields: Vec<String> },
    /// The element type that `auto` chose.
    AutoType {
        chosen: String,
        tensor: Option<String>,
    },
    /// `auto` found 32-bit tensors, but no 16-bit ones.
    Narrowed { n_tensors: usize },
    /// A tensor cannot have the file's type.
    Fallback {
        tensor: String,
        ne0: u64,
        wanted: String,
        used: String,
    },
    /// Tensors of other modalities, unused by the text model.
    OtherModality { names: Names },
    /// Tensors that readers compute themselves.
    Computed { names: Names },
    /// FP8 weights were multiplied by their scales.
    Scaled { n_tensors: usize },
    /// Scales of FP8 activations, which GGUF does not use.
    ActivationScales { names: Names },
    /// The config and the tensors disagree on the MTP head; the tensors are used.
    MtpCount { declared: u32, found: u32 },
    /// The architecture has no key for the sliding window.
    SlidingWindow { window: String },
    /// The RoPE type has no key.
    RopeType { found: String },
    /// An optional descriptive file cannot be read.
    Ignored { file: String, why: String },
    /// `config.json` lists several end-of-sequence tokens, and the tokenizer names none.
    FirstEos { used: u64, others: Vec<u64> },
    /// A special token's id is outside the vocabulary.
    SpecialId { role: String, id: u64 },
    /// Tokens of the other folder's tokenizer that differ from the checkpoint's.
    OtherTokens { names: Names },
    /// The piece scores of a SentencePiece model do not define a merge order.
    NoMergeOrder,
    /// Two tensors disagree on the draft's vocabulary.
    DraftVocab { tensor: String },
    /// The pattern differs from a known pre-tokenizer's, but splits identically.
    SameWords { pre: &'static str },
    /// Readers of GGUF do not apply this text normalisation.
    Normalizer { file: &'static str, found: String },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Defaults { fields } => {
                let fields = fields.join(", ");
                write!(
                    f,
                    "config.json: absent fields take their defaults: {fields}"
                )
            }
            Note::AutoType {
                chosen,
                tensor: Some(tensor),
            } => write!(f, "type auto: {chosen}, as tensor {tensor}"),
            Note::AutoType {
                chosen,
                tensor: None,
            } => write!(f, "type auto: {chosen}, as no matrix is stored in 16 bits"),
            Note::Narrowed { n_tensors } => write!(
                f,
                "type auto: {n_tensors} F32 matrices are narrowed to F16; type f32 keeps them"
            ),
            Note::Fallback {
                tensor,
                ne0,
                wanted,
                used,
            } => write!(
                f,
                "tensor {tensor}: rows of {ne0} elements are no whole {wanted} blocks, written as {used}"
            ),
            Note::OtherModality { names } => {
                write!(f, "not part of the text model, left out: {names}")
            }
            Note::Computed { names } => write!(f, "computed by every reader, left out: {names}"),
            Note::Scaled { n_tensors } => {
                write!(f, "{n_tensors} FP8 tensors are decoded with their scales")
            }
            Note::ActivationScales { names } => {
                write!(f, "scales of activations, left out: {names}")
            }
            Note::MtpCount { declared, found: 0 } => write!(
                f,
                "config.json declares {declared} MTP layer(s), but the checkpoint has no tensors \
                 of any: written as a model without one; graft-mtp adds a head from another file"
            ),
            Note::MtpCount { declared, found } => write!(
                f,
                "config.json declares {declared} MTP layer(s), the tensors have {found}: \
                 written with {found}"
            ),
            Note::SlidingWindow { window } => write!(
                f,
                "sliding_window = {window} is not stored: readers attend to the whole context"
            ),
            Note::RopeType { found } => {
                write!(f, "rope_type {found:?} is unknown: written without scaling")
            }
            Note::Ignored { file, why } => write!(f, "{file} is ignored: {why}"),
            Note::FirstEos { used, others } => write!(
                f,
                "config.json: eos_token_id: {used} is the end token, {others:?} are left out"
            ),
            Note::SpecialId { role, id } => {
                write!(
                    f,
                    "{role} token: {id} is no token of the vocabulary, left out"
                )
            }
            Note::DraftVocab { tensor } => write!(
                f,
                "tensor {tensor} names other tokens than d2t; d2t is what counts"
            ),
            Note::OtherTokens { names } => write!(
                f,
                "the tokenizer taken has other tokens than the checkpoint's: {names}"
            ),
            Note::NoMergeOrder => f.write_str(
                "tokenizer.model is no BPE model: readers merge its pieces by score all the same, \
                 so some texts give other tokens",
            ),
            Note::SameWords { pre } => write!(
                f,
                "tokenizer.json: the pre-tokenizer's pattern is not one of the known ones; it splits the \
                 probe texts like {pre}, which is written"
            ),
            Note::Normalizer { file, found } => write!(
                f,
                "{file}: normalizer {found} is not stored: texts that it changes \
                 give other tokens"
            ),
        }
    }
}
