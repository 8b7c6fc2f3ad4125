//! Result of `specconv inspect`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{TypeShare, Verdict};

/// What a GGUF file is, and whether its tensors are what its keys declare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "inspect")]
pub struct InspectReport {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The file, or the first part of a split model.
    pub path: String,
    /// Files the model is split over; 1 for a whole file.
    pub n_parts: u32,
    /// Bytes of all those files.
    pub size_bytes: u64,
    /// Version of the container.
    pub gguf_version: u32,
    /// Alignment of tensor data.
    pub alignment_bytes: u64,
    /// `general.architecture`; null where the key is absent.
    pub architecture: Option<String>,
    /// `general.name`; null where the key is absent.
    pub name: Option<String>,
    /// Mix of types by `general.file_type`; null where the key is absent.
    pub file_type: Option<String>,
    /// Number of tensors.
    pub n_tensors: u64,
    /// Elements of all tensors.
    pub n_elements: u64,
    /// Tensors by element type, the largest share first.
    pub types: Vec<TypeShare>,
    /// The layers; null for an architecture that is not supported, or keys that do not hold.
    pub layers: Option<LayersReport>,
    /// The MTP head; null where the layers are.
    pub mtp: Option<HeadReport>,
    /// The tokenizer; null where the file has none.
    pub tokenizer: Option<TokenizerReport>,
    /// All key-values, in file order.
    pub keys: Vec<KeyReport>,
    /// All tensors, in file order; null unless asked for.
    pub tensors: Option<Vec<TensorReport>>,
    /// What was not checked, and why.
    pub notes: Vec<String>,
    /// What keeps the file from being what its keys declare, one sentence each.
    pub problems: Vec<String>,
    /// Fail if there are problems.
    pub verdict: Verdict,
}

/// Layers by what they compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayersReport {
    /// `block_count`: trunk and MTP layers.
    pub n_block: u32,
    /// Trunk layers with softmax attention.
    pub n_attention: u32,
    /// Trunk layers with a recurrent state.
    pub n_recurrent: u32,
    /// MTP layers.
    pub n_mtp: u32,
}

/// Where a file keeps an MTP head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HeadPlace {
    /// Behind the trunk of the same file.
    Inline,
    /// The file is a head alone; the trunk is another file.
    Sidecar,
    /// Nowhere.
    None,
}

/// The MTP head: what the keys declare against what the tensors hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadReport {
    /// Where the tensors keep it.
    pub place: HeadPlace,
    /// `nextn_predict_layers`; 0 where the key is absent.
    pub n_declared: u32,
    /// Tensors of the head that are in the file.
    pub n_tensors: u64,
    /// Bytes of their data.
    pub size_bytes: u64,
    /// Required tensors of a declared head that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of a head that no key declares, or that its layout does not have.
    pub extra: Vec<String>,
}

/// The tokenizer in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizerReport {
    /// `tokenizer.ggml.model`, the kind.
    pub model: String,
    /// `tokenizer.ggml.pre`, how text is cut before merging; null where the key is absent.
    pub pre: Option<String>,
    /// Tokens.
    pub n_tokens: u64,
    /// Merges.
    pub n_merges: u64,
    /// Token that begins a text; null where the key is absent.
    pub bos_token_id: Option<u32>,
    /// Token that ends a text; null where the key is absent.
    pub eos_token_id: Option<u32>,
    /// Whether the file holds a chat template.
    pub has_chat_template: bool,
}

/// One key-value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyReport {
    /// The key.
    pub key: String,
    /// Its type in the file; arrays as `[string; 2048]`.
    #[serde(rename = "type")]
    pub value_type: String,
    /// The value as text; long arrays and texts are cut.
    pub value: String,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Elements along each axis, the contiguous one first.
    pub shape: Vec<u64>,
    /// Its element type.
    pub dtype: String,
    /// First byte of its data, from the start of its file.
    pub offset_bytes: u64,
    /// Bytes of its data, without padding.
    pub size_bytes: u64,
}
