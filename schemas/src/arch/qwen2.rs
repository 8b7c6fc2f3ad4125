//! Qwen2 and 2.5 dense: attention with biases, rotate-half rotation.

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
    attention("attn_q.bias", "self_attn.q_proj.bias", &[Q_ROWS]),
    attention("attn_k.bias", "self_attn.k_proj.bias", &[KV_ROWS]),
    attention("attn_v.bias", "self_attn.v_proj.bias", &[KV_ROWS]),
    layer_norm("ffn_norm.weight", "post_attention_layernorm.weight"),
];

pub(super) const QWEN2: ArchSpec = ArchSpec {
    name: "qwen2",
    hf_classes: &["Qwen2ForCausalLM"],
    tensors: &[ENDS, LAYER, DENSE],
    ..ArchSpec::PLAIN
};
