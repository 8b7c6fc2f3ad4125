//! Llama, Mistral and Mixtral: dense attention, interleaved rotation; one feed-forward block or a
//! mixture of them.

use super::rows::*;
use super::spec::{ArchSpec, TensorSpec, Transform};

const Q_PAIRS: &[Transform] = &[Transform::RopePairs { n_head: N_HEAD }];
const K_PAIRS: &[Transform] = &[Transform::RopePairs { n_head: N_HEAD_KV }];

const LAYER: &[TensorSpec] = &[
    layer_norm("attn_norm.weight", "input_layernorm.weight"),
    attention(
        "attn_q.weight",
        "self_attn.q_proj.weight",
        &[N_EMBD, Q_ROWS],
    )
    .with(Q_PAIRS),
    attention(
        "attn_k.weight",
        "self_attn.k_proj.weight",
        &[N_EMBD, KV_ROWS],
    )
    .with(K_PAIRS),
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
    attention("attn_q.bias", "self_attn.q_proj.bias", &[Q_ROWS])
        .with(Q_PAIRS)
        .optional(),
    attention("attn_k.bias", "self_attn.k_proj.bias", &[KV_ROWS])
        .with(K_PAIRS)
        .optional(),
    attention("attn_v.bias", "self_attn.v_proj.bias", &[KV_ROWS]).optional(),
    attention("attn_output.bias", "self_attn.o_proj.bias", &[N_EMBD]).optional(),
    layer_norm("ffn_norm.weight", "post_attention_layernorm.weight"),
];

/// The experts of Mixtral.
const MIXTRAL: &[TensorSpec] = &[
    experts(
        "ffn_gate_inp.weight",
        "block_sparse_moe.gate.weight",
        &[N_EMBD, N_EXPERT],
    ),
    experts(
        "ffn_gate_exps.weight",
        "block_sparse_moe.experts.{}.w1.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    ),
    experts(
        "ffn_down_exps.weight",
        "block_sparse_moe.experts.{}.w2.weight",
        &[N_FF_EXPERT, N_EMBD, N_EXPERT],
    ),
    experts(
        "ffn_up_exps.weight",
        "block_sparse_moe.experts.{}.w3.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    ),
];

pub(super) const LLAMA: ArchSpec = ArchSpec {
    name: "llama",
    hf_classes: &[
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
    ],
    tensors: &[ENDS, &[ROPE_FREQS], LAYER, DENSE, MIXTRAL],
    ..ArchSpec::PLAIN
};
