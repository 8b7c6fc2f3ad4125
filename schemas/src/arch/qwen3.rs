//! Qwen3, dense and with experts: attention with normalised queries and keys, rotate-half rotation.

use super::rows::*;
use super::spec::{ArchSpec, TensorSpec};

const LAYER: &[TensorSpec] = &[
    layer_norm("attn_norm.weight", "input_layernorm.weight"),
    attention(
        "attn_q.weight",
        "self_attn.q_proj.weight",
        &[N_EMBD, Q_ROWS],
    ),
    attention(
        "attn_k.weight",
        "self_attn.k_proj.weight",
        &[N_EMBD, KV_ROWS],
    ),
    attention(
        "attn_v.weight",
        "self_attn.v_proj.weight",
        &[N_EMBD, KV_ROWS],
    ),
    attention(
        "attn_output.weight",
        "self_attn.o_proj.weight",
        &[Q_ROWS, N_EMBD],
    ),
    attention("attn_q_norm.weight", "self_attn.q_norm.weight", &[HEAD_DIM]),
    attention("attn_k_norm.weight", "self_attn.k_norm.weight", &[HEAD_DIM]),
    layer_norm("ffn_norm.weight", "post_attention_layernorm.weight"),
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
