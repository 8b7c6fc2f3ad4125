//! Errors of loading models and of decoding.

use std::path::PathBuf;

use kernels::backend::{CacheType, Failure, UnsupportedWeight};
use schemas::arch::{HparamsError, keys};
use schemas::gguf::{DType, KeyError, ReadError, SourceError};
use schemas::vocab::{D2tError, VocabMapError};

use crate::sample::SampleError;
use crate::speculate::lookup::LookupError;
use crate::tokenizer::TokenizerError;

/// A model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// The file is unreadable or not a valid GGUF; the message names the file.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The model in the file cannot be used.
    #[error("{}: {source}", .path.display())]
    Model { path: PathBuf, source: ModelError },
    /// A lookup file cannot be used; the message names the file.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// A vocabulary map cannot be used.
    #[error("{}: {source}", .path.display())]
    VocabMap {
        path: PathBuf,
        source: VocabMapError,
    },
    /// A vocabulary map was made for other vocabularies.
    #[error(
        "{}: made for another {side}: {found} tokens with hash {found_hash}, expected {expected} tokens with hash {expected_hash}",
        .path.display()
    )]
    MapMismatch {
        path: PathBuf,
        side: &'static str,
        found: u32,
        found_hash: String,
        expected: u32,
        expected_hash: String,
    },
    /// The models do not fit together.
    #[error("{}: draft does not fit the target: {what} is {draft}, the target has {target}", .path.display())]
    DraftMismatch {
        path: PathBuf,
        what: &'static str,
        draft: String,
        target: String,
    },
    /// A speculator needs a file that was not given.
    #[error("{name} needs {needs}")]
    SpeculatorNeeds {
        name: &'static str,
        needs: &'static str,
    },
    /// No speculator has this name.
    #[error("unknown speculator {found:?}, expected one or more of {known}")]
    UnknownSpeculator {
        found: String,
        known: String,
        /// The speculator that the user may have meant.
        nearest: Option<&'static str>,
    },
    /// The text is longer than the context.
    #[error("{id}: {need} positions for the prompt and its continuation, the context has {have}")]
    ContextLength {
        id: String,
        need: usize,
        have: usize,
    },
    /// The prompt is empty.
    #[error("{id}: no tokens")]
    EmptyPrompt { id: String },
    /// A token id outside the vocabulary.
    #[error("{id}: token {token} is outside the vocabulary of {n_vocab}")]
    TokenRange {
        id: String,
        token: u32,
        n_vocab: usize,
    },
    /// The logits have no largest element.
    #[error("{0}")]
    Sample(#[from] SampleError),
    /// Embeddings do not match the prompt in number or width.
    #[error("{id}: embeddings of {found:?} elements, expected {n_rows} of {width} elements each")]
    Embeddings {
        id: String,
        n_rows: usize,
        found: Vec<usize>,
        width: usize,
    },
    /// Embeddings have positions with several coordinates, which the model does not have.
    #[error(
        "{id}: positions of embeddings, but architecture {arch} has positions with one coordinate (no key {arch}.{})",
        keys::ROPE_DIMENSION_SECTIONS
    )]
    Positions { id: String, arch: &'static str },
    /// A sequence cannot be rolled back to this length.
    #[error("sequence {seq}: cannot be rolled back to {len} tokens, it has {have}")]
    NoSuchText { seq: usize, len: usize, have: usize },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] Failure),
}

/// The reason why a model cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ModelError {
    /// Invalid hyperparameters.
    #[error(transparent)]
    Hparams(#[from] HparamsError),
    /// A key is missing or mistyped.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A tensor of the architecture is not in the file.
    #[error("tensor {tensor} is missing")]
    MissingTensor { tensor: String },
    /// A tensor that the architecture does not have.
    #[error("tensor {tensor} is not part of a {arch} model with these keys")]
    UnknownTensor { tensor: String, arch: &'static str },
    /// A tensor has an unexpected shape.
    #[error("tensor {tensor}: shape {found:?}, expected {expected:?}")]
    Shape {
        tensor: String,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    /// No kernel supports the tensor's type.
    #[error("tensor {tensor}: {source}")]
    Unsupported {
        tensor: String,
        source: UnsupportedWeight,
    },
    /// The kind of RoPE scaling is not supported.
    #[error("rope scaling {kind:?} is not supported (supported: none, linear, yarn)")]
    RopeScaling { kind: String },
    /// The file has only an MTP head, and a whole model is needed.
    #[error("the file holds only an MTP head (blk.0 is missing): pass it as the draft (-md)")]
    HeadOnly,
    /// The file is a draft, and a whole model is needed.
    #[error(
        "the file holds only a draft, which reads hidden states of a target: pass it as the draft (-md)"
    )]
    DraftOnly,
    /// The file is not a DFlash or DSpark draft.
    #[error("architecture {arch} is not a DFlash or DSpark draft")]
    NoBlockDraft { arch: &'static str },
    /// The file is not an assistant.
    #[error("architecture {arch} is not an assistant")]
    NoAssistant { arch: &'static str },
    /// An assistant reads hidden states of another width.
    #[error(
        "the assistant was made for another target: embedding_length_out {ours}, expected {theirs}, the target's embedding_length"
    )]
    TargetWidth { ours: u64, theirs: u64 },
    /// An assistant's heads do not fit the keys and values of the target.
    #[error(
        "the assistant was made for another target: block {block} attends to {n_head_kv} KV heads of {head_dim} elements, {}",
        lent(found)
    )]
    LentHeads {
        block: u32,
        head_dim: u64,
        n_head_kv: u64,
        /// The target's block, with the size and number of its heads.
        found: Option<(u32, [u64; 2])>,
    },
    /// A list of tokens lacks a token.
    #[error(
        "tensor {tensor}: token {token} in row {row}, expected each of the tokens 0 to {} once",
        n_vocab - 1
    )]
    Permutation {
        tensor: String,
        row: usize,
        token: i64,
        n_vocab: u64,
    },
    /// A table of the experts of tokens has an expert that does not exist.
    #[error("tensor {tensor}: expert {expert}, expected 0 to {}", n_expert - 1)]
    TokenExpert {
        tensor: String,
        expert: i32,
        n_expert: u64,
    },
    /// The list of forward passes lacks the architecture.
    #[error("architecture {arch} can be converted but not run: it has no forward pass")]
    NoForwardPass { arch: &'static str },
    /// The file is not an EAGLE-3 draft.
    #[error("architecture {arch} is not an EAGLE-3 draft")]
    NoEagle3 { arch: &'static str },
    /// A draft would use a tensor of its target that has another width.
    #[error(
        "the draft has no embedding or output head, and cannot use the target's: embedding_length {theirs}, expected {ours}"
    )]
    BorrowedWidth { ours: u64, theirs: u64 },
    /// The map of a reduced output head is invalid.
    #[error(transparent)]
    D2t(#[from] D2tError),
    /// The file has no MTP head.
    #[error("the file has no MTP head: {reason}")]
    NoMtpHead { reason: String },
    /// A tensor contains invalid values.
    #[error("tensor {tensor} ({dtype}): {what} in block {index}, at byte {offset}")]
    InvalidData {
        tensor: String,
        dtype: DType,
        what: &'static str,
        index: usize,
        offset: u64,
    },
    /// A tensor's type cannot be dequantized.
    #[error("tensor {tensor}: {dtype} values cannot be decoded")]
    NoCodec { tensor: String, dtype: DType },
    /// A tensor's bytes could not be read.
    #[error("tensor {tensor}: {source}")]
    Source { tensor: String, source: SourceError },
    /// The head size is not a multiple of the block length of the cache's type.
    #[error(
        "a {element} cache holds blocks of {block_len} elements, and key_length is {head_dim}: \
         choose f16, bf16 or f32"
    )]
    CacheType {
        element: CacheType,
        block_len: usize,
        head_dim: u64,
    },
    /// The device is out of memory or failed.
    #[error(transparent)]
    Device(#[from] Failure),
    /// Weights and caches do not fit the device.
    #[error(
        "{weight_bytes} bytes of weights and {cache_bytes} of caches do not fit {backend}, where \
         {free_bytes} are free: decode fewer sequences or shorter ones, choose smaller types for caches \
         (-ctk, -ctv) or weights (specconv quantize), or run with --device cpu"
    )]
    NoRoom {
        backend: String,
        weight_bytes: u64,
        cache_bytes: u128,
        free_bytes: u64,
    },
    /// Caches do not fit in memory.
    #[error(
        "{n_seq} sequences of {n_ctx} positions need {need_bytes} bytes of cache, {free_bytes} are free; \
         decode fewer sequences, or shorter ones"
    )]
    CacheSize {
        n_seq: usize,
        n_ctx: usize,
        need_bytes: u128,
        free_bytes: u64,
    },
}

/// Describes the block of the target that an assistant's block would attend to.
fn lent(found: &Option<(u32, [u64; 2])>) -> String {
    match found {
        Some((block, [head_dim, n_head_kv])) => {
            format!("block {block} of the target has {n_head_kv} of {head_dim}")
        }
        None => "the target has no block of that kind".to_owned(),
    }
}
