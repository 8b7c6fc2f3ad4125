//! Notes: facts about a successful conversion that the user should know.

use crate::error::Names;

/// A fact about a successful conversion that the user should know.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "fields say what the message says")]
pub enum Note {
    /// Fields absent from the config, filled with defaults.
    #[error("config.json: absent fields are filled with defaults: {}", fields.join(", "))]
    Defaults { fields: Vec<String> },
    /// The element type that `auto` chose.
    #[error("type auto: {chosen}, {}", auto_reason(tensor.as_deref()))]
    AutoType {
        chosen: String,
        tensor: Option<String>,
    },
    /// The architecture's matrices keep their types.
    #[error(
        "matrices keep the types of the checkpoint, FP8 as Q8_0; the type of the file applies to F16 matrices only"
    )]
    KeptTypes,
    /// The head of a model whose heads are always sidecars.
    #[error(
        "the MTP head is left out: readers mix the streams of an inline head with the weights of the trunk, and this head has \
         its own; --mtp writes it as a sidecar"
    )]
    SidecarOnly,
    /// Layers under the names of a head that do not belong to an MTP head.
    #[error("no MTP head, left out: {names}; --dspark writes a DSpark draft")]
    OtherHead { names: Names },
    /// `auto` found 32-bit tensors, but no 16-bit ones.
    #[error("type auto: {n_tensors} F32 matrices are narrowed to F16; type f32 keeps them")]
    Narrowed { n_tensors: usize },
    /// A tensor cannot have the file's type.
    #[error(
        "tensor {tensor}: rows of {ne0} elements are not a multiple of {wanted} blocks, written as {used}"
    )]
    Fallback {
        tensor: String,
        ne0: u64,
        wanted: String,
        used: String,
    },
    /// Tensors of other modalities, unused by the text model.
    #[error("not part of the text model, left out: {names}")]
    OtherModality { names: Names },
    /// Tensors that readers compute themselves.
    #[error("left out because every reader computes them: {names}")]
    Computed { names: Names },
    /// FP8 weights were multiplied by their scales.
    #[error("{n_tensors} FP8 tensors are decoded with their scales")]
    Scaled { n_tensors: usize },
    /// Scales of FP8 activations, which GGUF does not use.
    #[error("scales of activations, left out: {names}")]
    ActivationScales { names: Names },
    /// The config and the tensors disagree on the MTP head; the tensors are used.
    #[error("MTP layers in config.json: {declared}, {}", mtp_found(*found))]
    MtpCount { declared: u32, found: u32 },
    /// The architecture has no key for the sliding window.
    #[error("sliding_window = {window} is not stored: readers attend to the whole context")]
    SlidingWindow { window: String },
    /// The RoPE type has no key.
    #[error("rope_type {found:?} is unknown: written without scaling")]
    RopeType { found: String },
    /// An optional descriptive file cannot be read.
    #[error("{file} is ignored: {why}")]
    Ignored { file: String, why: String },
    /// `config.json` lists several end-of-sequence tokens, and the tokenizer names none.
    #[error(
        "config.json: eos_token_id: {used} is the end-of-sequence token, {others:?} are left out"
    )]
    FirstEos { used: u64, others: Vec<u64> },
    /// A special token's id is outside the vocabulary.
    #[error("{role} token: id {id} is not in the vocabulary, left out")]
    SpecialId { role: String, id: u64 },
    /// Tokens of the other folder's tokenizer that differ from the checkpoint's.
    #[error("the tokenizer of the other folder has other tokens than the checkpoint's: {names}")]
    OtherTokens { names: Names },
    /// The piece scores of a SentencePiece model do not define a merge order.
    #[error(
        "tokenizer.model is not a BPE model: readers merge its pieces by score, so some texts give other tokens"
    )]
    NoMergeOrder,
    /// Clusters of an assistant's tokens, a part that llama.cpp's converter leaves out.
    #[error(
        "the clusters of the draft's tokens are kept, so that it scores fewer tokens; llama.cpp b11434 cannot load such a \
         file, --no-clusters leaves them out"
    )]
    Clusters,
    /// Two tensors disagree on the draft's vocabulary.
    #[error("tensor {tensor} marks other tokens than d2t; d2t is used")]
    DraftVocab { tensor: String },
    /// The pattern differs from a known pre-tokenizer's, but splits identically.
    #[error(
        "tokenizer.json: the pattern of the pre-tokenizer is unknown; it splits the probe texts like {pre}, which is written"
    )]
    SamePieces { pre: &'static str },
    /// Readers of GGUF do not apply this text normalisation.
    #[error("{file}: normalizer {found} is not stored: texts that it changes give other tokens")]
    Normalizer { file: &'static str, found: String },
}

fn auto_reason(tensor: Option<&str>) -> String {
    match tensor {
        Some(tensor) => format!("the type of tensor {tensor}"),
        None => "because no matrix is stored in 16 bits".to_owned(),
    }
}

fn mtp_found(found: u32) -> String {
    match found {
        0 => "but the checkpoint has no tensors of one: written as a model without an MTP head; \
              graft-mtp adds a head from another file"
            .to_owned(),
        n => format!("the tensors have {n}: written with {n}"),
    }
}
