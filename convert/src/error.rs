//! Errors of a conversion.

use std::fmt;
use std::path::PathBuf;

use safetensors::Dtype;
use schemas::arch::HparamsError;
use schemas::gguf::{SizeError, SourceError};
use schemas::vocab::D2tError;

use crate::safetensors_header::HeaderError;

/// The reason why a checkpoint cannot be converted. Messages name the file, then the tensor or field.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields say what the message says")]
pub enum Error {
    /// An operating system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A weight file could not be opened or read.
    #[error("{0}")]
    Source(#[source] SourceError),
    /// The path is not a checkpoint.
    #[error(
        "{}: {what}; expected the folder of an HF checkpoint, or hf://org/name",
        path.display()
    )]
    NoCheckpoint { path: PathBuf, what: &'static str },
    /// The path is a file.
    #[error("{}: a file, expected the folder of an HF checkpoint", path.display())]
    NotAFolder { path: PathBuf },
    /// The folder has the changes of a fine-tune without the model that they apply to.
    #[error(
        "{}: a LoRA adapter{}, not a whole model",
        path.display(),
        base.as_ref().map(|base| format!(" of {base}")).unwrap_or_default()
    )]
    Adapter { path: PathBuf, base: Option<String> },
    /// The checkpoint has no tokenizer.
    #[error("{}: no tokenizer: neither tokenizer.json nor tokenizer.model nor tiktoken.model", path.display())]
    NoTokenizer { path: PathBuf },
    /// The index names a file that does not exist.
    #[error(
        "{}: file is missing, expected by the index for {tensors}; download it",
        path.display()
    )]
    MissingFile { path: PathBuf, tensors: Names },
    /// A file is not JSON, or does not have the expected structure.
    #[error("{}: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// A JSON field has the wrong type, or a value that no model has.
    #[error("{}: field {field}: expected {expected}, found {found}", path.display())]
    Field {
        path: PathBuf,
        field: String,
        expected: String,
        found: String,
    },
    /// A JSON field is absent.
    #[error("{}: field {field} is missing", path.display())]
    MissingField { path: PathBuf, field: String },
    /// The class is that of a released model that is not supported.
    #[error(
        "{}: model class {found:?} is known, but not supported yet (supported: {supported}; \
         --print-supported-models lists all)",
        path.display()
    )]
    UnsupportedArch {
        path: PathBuf,
        found: String,
        supported: Names,
    },
    /// The class resembles a supported one.
    #[error("{}: model class {found:?} is unknown; did you mean {nearest}?", path.display())]
    MisspeltArch {
        path: PathBuf,
        found: String,
        nearest: &'static str,
    },
    /// The class is unknown.
    #[error(
        "{}: model class {found:?} is unknown (supported: {supported}; \
         --print-supported-models lists all)",
        path.display()
    )]
    UnknownArch {
        path: PathBuf,
        found: String,
        supported: Names,
    },
    /// The quantization method of the weights is not supported.
    #[error(
        "{}: quantization method {method:?} is not supported; convert the original checkpoint instead",
        path.display()
    )]
    Quantized { path: PathBuf, method: String },
    /// A setting of the model cannot be expressed in the file.
    #[error("{}: {field} = {found} is not supported", path.display())]
    UnsupportedSetting {
        path: PathBuf,
        field: &'static str,
        found: String,
    },
    /// The checkpoint has no safetensors files.
    #[error("{}: no model*.safetensors files; {hint}", path.display())]
    NoWeights { path: PathBuf, hint: &'static str },
    /// A safetensors file is malformed.
    #[error("{}: not a valid safetensors file ({size_bytes} bytes): {source}", path.display())]
    Safetensors {
        path: PathBuf,
        size_bytes: u64,
        source: Box<HeaderError>,
    },
    /// The index names a file outside the folder.
    #[error("{}: tensor {tensor}: {file} is not the name of a file in the folder of the index", path.display())]
    IndexPath {
        path: PathBuf,
        tensor: String,
        file: String,
    },
    /// The index and the files list different tensors.
    #[error(
        "{}: index and files disagree; only in the index: {missing}; only in the files: {extra}",
        path.display()
    )]
    IndexMismatch {
        path: PathBuf,
        missing: Names,
        extra: Names,
    },
    /// Two tensors have the same name.
    #[error("{}: tensor {tensor}: already stored as {first} in {}", path.display(), first_path.display())]
    DuplicateTensor {
        path: PathBuf,
        tensor: String,
        first: String,
        first_path: PathBuf,
    },
    /// Tensors that the architecture requires are missing.
    #[error("{}: missing tensors: {names}", path.display())]
    MissingTensors { path: PathBuf, names: Names },
    /// The output head is neither stored nor tied to the embedding.
    #[error(
        "{}: tie_word_embeddings is false, but the checkpoint has no tensor {tensor}",
        path.display()
    )]
    MissingHead { path: PathBuf, tensor: String },
    /// The architecture has no tensors of these names.
    #[error("{}: tensors that architecture {arch} does not have: {names}", path.display())]
    UnusedTensors {
        path: PathBuf,
        arch: &'static str,
        names: Names,
    },
    /// A tensor's shape differs from the one in the config.
    #[error("{}: tensor {tensor}: shape {found:?}, expected {expected:?} from config.json", path.display())]
    Shape {
        path: PathBuf,
        tensor: String,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    /// The embedding does not have one row per token.
    #[error(
        "{}: tensor {tensor}: {found} rows, but config.json gives a vocabulary of {expected} tokens",
        path.display()
    )]
    VocabRows {
        path: PathBuf,
        tensor: String,
        found: u64,
        expected: u64,
    },
    /// The order of tokens by cluster is not a permutation.
    #[error(
        "{}: tensor {tensor}: {found}, expected each of the tokens 0 to {} once",
        path.display(),
        n_vocab - 1
    )]
    TokenOrdering {
        path: PathBuf,
        tensor: String,
        found: String,
        n_vocab: u64,
    },
    /// The element type is not a supported floating-point type.
    #[error("{}: tensor {tensor}: element type {found:?}, expected F64, F32, F16, BF16, F8_E4M3 or F8_E5M2", path.display())]
    ElementType {
        path: PathBuf,
        tensor: String,
        found: Dtype,
    },
    /// Quants without their scales.
    #[error(
        "{}: tensor {tensor}: {dtype:?} weights need their scales, but the checkpoint has no tensor {scale}; download the whole checkpoint",
        path.display()
    )]
    MissingScales {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
        scale: String,
    },
    /// Scales whose shape does not match their tensor.
    #[error(
        "{}: tensor {tensor}: shape {found:?}, expected scales for shape {scaled:?} {}",
        path.display(),
        blocks_clause(blocks.as_deref())
    )]
    ScalesShape {
        path: PathBuf,
        tensor: String,
        found: Vec<u64>,
        scaled: Vec<u64>,
        blocks: Option<Vec<u64>>,
    },
    /// Scales that the config does not describe.
    #[error(
        "{}: tensor {tensor}: has scales in {scale}, but config.json has no quantization_config that describes them; use the config.json that the checkpoint was published with",
        path.display()
    )]
    UnannouncedScales {
        path: PathBuf,
        tensor: String,
        scale: String,
    },
    /// The tensor's size is invalid.
    #[error("{}: tensor {tensor}: {source}", path.display())]
    Size {
        path: PathBuf,
        tensor: String,
        source: SizeError,
    },
    /// Only the MTP head was requested, but the checkpoint has none.
    #[error("{}: no MTP head to write: missing tensors: {missing}{}", path.display(), declared_clause(*declared))]
    NoMtpHead {
        path: PathBuf,
        missing: Names,
        declared: u32,
    },
    /// Only the MTP head was requested, but the architecture never has one.
    #[error("{}: architecture {arch} has no MTP head to write", path.display())]
    MtpUnsupported { path: PathBuf, arch: &'static str },
    /// More MTP layers than any reader supports.
    #[error("{}: {found} MTP layers, expected at most 1: checkpoints of this family have one projection for all", path.display())]
    MtpLayers { path: PathBuf, found: u32 },
    /// A DSpark draft was requested of an architecture without one.
    #[error("{}: architecture {arch} has no DSpark draft inside of a checkpoint; --dspark is for DeepSeek V4 only", path.display())]
    DSparkUnsupported { path: PathBuf, arch: &'static str },
    /// More MTP layers than readers of the architecture accept.
    #[error("{}: {found} MTP layers, readers of architecture {arch} accept {max}; convert with --no-mtp", path.display())]
    MtpCount {
        path: PathBuf,
        arch: &'static str,
        found: u32,
        max: u32,
    },
    /// Experts of one layer are stored in different ways.
    #[error(
        "{}: tensor {tensor}: stored as {found}, expected {expected} like {first}; all experts of a layer have one type",
        path.display()
    )]
    MixedExperts {
        path: PathBuf,
        tensor: String,
        found: &'static str,
        expected: &'static str,
        first: String,
    },
    /// A draft was given without its target.
    #[error(
        "{}: the draft uses the tokenizer and hidden states of its target; set the target's folder with --target-model-dir",
        path.display()
    )]
    NeedsTarget { path: PathBuf },
    /// A target was given for a model that is not a draft.
    #[error("{}: architecture {arch} is not a draft; --target-model-dir is for drafts only", path.display())]
    NoDraft { path: PathBuf, arch: &'static str },
    /// Token ids or indices are not stored as integers.
    #[error("{}: tensor {tensor}: element type {found:?}, expected I64 or I32", path.display())]
    IntegerType {
        path: PathBuf,
        tensor: String,
        found: Dtype,
    },
    /// The vocabulary map has an entry outside the target's vocabulary, or two equal ones.
    #[error("{}: invalid offsets in the vocabulary map: {source}", path.display())]
    D2t { path: PathBuf, source: D2tError },
    /// The config's hyperparameters are invalid.
    #[error("{}: {source}", path.display())]
    Hparams { path: PathBuf, source: HparamsError },
    /// The kind of tokenizer is not supported.
    #[error("{}: {found} is not supported; expected byte-level BPE or SentencePiece", path.display())]
    UnsupportedTokenizer { path: PathBuf, found: String },
    /// `tokenizer.model` is not a SentencePiece protocol buffer.
    #[error("{}: not a SentencePiece model: {source}", path.display())]
    TokenizerModel {
        path: PathBuf,
        source: prost::DecodeError,
    },
    /// The pre-tokenizer is unknown.
    #[error(
        "{}: unknown pre-tokenizer pattern {found}{nearest}; known: {known}",
        path.display()
    )]
    PreTokenizer {
        path: PathBuf,
        found: String,
        nearest: String,
        known: Names,
    },
    /// A token's id is beyond the vocabulary.
    #[error("{}: token {text:?} has id {id}, but the vocabulary has {n_vocab} tokens", path.display())]
    TokenId {
        path: PathBuf,
        text: String,
        id: u64,
        n_vocab: u64,
    },
    /// Two tokens share an id.
    #[error("{}: id {id} belongs to two tokens, {first:?} and {second:?}", path.display())]
    TokenClash {
        path: PathBuf,
        id: u64,
        first: String,
        second: String,
    },
    /// Two tokens have the same text, which readers reject.
    #[error("{}: tokens {first} and {second} have the same text {text:?}", path.display())]
    DuplicateToken {
        path: PathBuf,
        text: String,
        first: u64,
        second: u64,
    },
}

fn blocks_clause(blocks: Option<&[u64]>) -> String {
    match blocks {
        Some(blocks) => format!("in blocks of {blocks:?}"),
        None => "per tensor or per row".to_owned(),
    }
}

fn declared_clause(declared: u32) -> String {
    match declared {
        0 => String::new(),
        n => format!("; MTP layers in config.json: {n}, so the checkpoint was saved without them"),
    }
}

/// A list of names in a message: the first few, and the number of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

/// Maximum number of names in a message.
const SHOWN: usize = 8;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN)];
        match (shown.is_empty(), self.0.len() - shown.len()) {
            (true, _) => f.write_str("none"),
            (_, 0) => f.write_str(&shown.join(", ")),
            (_, more) => write!(f, "{} and {more} more", shown.join(", ")),
        }
    }
}

impl<S: Into<String>> FromIterator<S> for Names {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Names {
        Names(names.into_iter().map(Into::into).collect())
    }
}
