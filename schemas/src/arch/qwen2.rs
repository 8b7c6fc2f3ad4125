//! Qwen2 and 2.5, dense: attention with biases, rotate-half RoPE.

use super::shared_tensors::*;
use super::spec::{ArchSpec, TensorSpec};

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_BIAS,
    ATTN_K_BIAS,
    ATTN_V_BIAS,
    FFN_NORM,
];

pub(super) const QWEN2: ArchSpec = ArchSpec {
    name: "qwen2",
    hf_classes: &["Qwen2ForCausalLM"],
    tensors: &[ENDS, LAYER, DENSE],
    ..ArchSpec::PLAIN
};
