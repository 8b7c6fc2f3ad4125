//! GLM 4.5 to 4.7: experts chosen by their sigmoids behind some dense layers, heads rotated in part,
//! an MTP head behind the trunk.

use super::hparams::Gating;
use super::nextn;
use super::rows::*;
use super::spec::{ArchSpec, RoutingSpec, TensorSpec};

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
    attention("attn_q.bias", "self_attn.q_proj.bias", &[Q_ROWS]).optional(),
    attention("attn_k.bias", "self_attn.k_proj.bias", &[KV_ROWS]).optional(),
    attention("attn_v.bias", "self_attn.v_proj.bias", &[KV_ROWS]).optional(),
    attention("attn_q_norm.weight", "self_attn.q_norm.weight", &[HEAD_DIM]).optional(),
    attention("attn_k_norm.weight", "self_attn.k_norm.weight", &[HEAD_DIM]).optional(),
    layer_norm(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
    ),
];

pub(super) const GLM4MOE: ArchSpec = ArchSpec {
    name: "glm4moe",
    hf_classes: &["Glm4MoeForCausalLM"],
    tensors: &[ENDS, LAYER, DENSE, EXPERTS, &[CHOICE_BIAS], SHARED_EXPERT],
    mtp: nextn::BEHIND,
    routing: RoutingSpec {
        gating: Gating::Sigmoid,
        normalised: false,
    },
    ..ArchSpec::PLAIN
};
