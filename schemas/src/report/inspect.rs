//! Result of `specconv inspect`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PassportReport, TypeShare, Verdict};

/// Contents of a GGUF file, and the check that its tensors match its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "inspect")]
pub struct InspectReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Path of the file, or of the first shard of a split model.
    pub path: String,
    /// Number of shards; 1 for a model that is not split.
    pub n_parts: u32,
    /// Bytes of all shards.
    pub size_bytes: u64,
    /// Version of the GGUF format.
    pub gguf_version: u32,
    /// Alignment of tensor data in bytes.
    pub alignment_bytes: u64,
    /// `general.architecture`; null if the key is absent.
    pub architecture: Option<String>,
    /// `general.name`; null if the key is absent.
    pub name: Option<String>,
    /// Quantization mix by `general.file_type`; null if the key is absent.
    pub file_type: Option<String>,
    /// Number of tensors.
    pub n_tensors: u64,
    /// Number of elements of all tensors.
    pub n_elements: u64,
    /// Tensors by element type, the largest share first.
    pub types: Vec<TypeShare>,
    /// Layers; null for an unsupported architecture or invalid keys.
    pub layers: Option<LayersReport>,
    /// MTP head; null if `layers` is null.
    pub mtp: Option<HeadReport>,
    /// Tokenizer; null if the file has none.
    pub tokenizer: Option<TokenizerReport>,
    /// Result of a verification that the file carries; null if it carries none.
    #[serde(default)]
    pub passport: Option<PassportReport>,
    /// All key-values, in file order.
    pub keys: Vec<KeyReport>,
    /// All tensors, in file order; null unless requested.
    pub tensors: Option<Vec<TensorReport>>,
    /// Checks that were skipped, with the reason.
    pub notes: Vec<String>,
    /// Differences between the tensors and what the keys declare, one sentence each.
    pub problems: Vec<String>,
    /// Fail if there are problems.
    pub verdict: Verdict,
}

/// Number of layers by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayersReport {
    /// `block_count`: trunk and MTP layers.
    pub n_block: u32,
    /// Trunk layers with softmax attention.
    pub n_attention: u32,
    /// Trunk layers with a recurrent state.
    pub n_recurrent: u32,
    /// Trunk layers with a feed-forward network only.
    #[serde(default)]
    pub n_feed_forward: u32,
    /// MTP layers.
    pub n_mtp: u32,
}

/// Location of an MTP head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HeadPlace {
    /// After the trunk layers in the same file.
    Inline,
    /// The file holds only the head; the trunk is in another file.
    Sidecar,
    /// The file has no MTP head.
    None,
}

/// MTP head as the keys declare it and as the tensors contain it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadReport {
    /// Location of the head by its tensors.
    pub place: HeadPlace,
    /// `nextn_predict_layers`; 0 if the key is absent.
    pub n_declared: u32,
    /// Number of the head's tensors in the file.
    pub n_tensors: u64,
    /// Bytes of their data.
    pub size_bytes: u64,
    /// Required tensors of a declared head that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of an undeclared head, or tensors that are not part of the head's layout.
    pub extra: Vec<String>,
}

/// The tokenizer in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizerReport {
    /// `tokenizer.ggml.model`, the kind of tokenizer.
    pub model: String,
    /// `tokenizer.ggml.pre`, the pre-tokenizer; null if the key is absent.
    pub pre: Option<String>,
    /// Number of tokens in the vocabulary.
    pub n_tokens: u64,
    /// Number of merges.
    pub n_merges: u64,
    /// Beginning-of-sequence token; null if the key is absent.
    pub bos_token_id: Option<u32>,
    /// End-of-sequence token; null if the key is absent.
    pub eos_token_id: Option<u32>,
    /// True if the file contains a chat template.
    pub has_chat_template: bool,
}

/// One key-value pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyReport {
    /// The key.
    pub key: String,
    /// Type of the value; arrays as `[string; 2048]`.
    #[serde(rename = "type")]
    pub value_type: String,
    /// Value as text; long arrays and strings are truncated.
    pub value: String,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorReport {
    /// Name of the tensor.
    pub name: String,
    /// Shape, the contiguous axis first.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: String,
    /// Offset of the tensor's data from the start of its file, in bytes.
    pub offset_bytes: u64,
    /// Bytes of the tensor's data, without padding.
    pub size_bytes: u64,
}
