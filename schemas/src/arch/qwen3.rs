//! Qwen3, dense and with experts: attention with normalized queries and keys, rotate-half RoPE.

use super::shared_tensors::*;
use super::spec::{ArchSpec, TensorSpec};

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_NORM,
    ATTN_K_NORM,
    FFN_NORM,
];

pub(super) const QWEN3: ArchSpec = ArchSpec {
    name: "qwen3",
    hf_classes: &["Qwen3ForCausalLM"],
    tensors: &[ENDS, LAYER, DENSE],
    ..ArchSpec::PLAIN
};

pub(super) const QWEN3MOE: ArchSpec = ArchSpec {
    name: "qwen3moe",
    hf_classes: &["Qwen3MoeForCausalLM"],
    tensors: &[ENDS, LAYER, EXPERTS],
    ..ArchSpec::PLAIN
};
