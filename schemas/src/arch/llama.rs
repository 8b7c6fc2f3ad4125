//! Llama, Mistral and Mixtral: interleaved RoPE, dense feed-forward blocks or a mixture of experts.

use super::shared_tensors::*;
use super::spec::{ArchSpec, TensorSpec, Transform};

const Q_PAIRS: &[Transform] = &[Transform::RopePairs { n_head: N_HEAD }];
const K_PAIRS: &[Transform] = &[Transform::RopePairs { n_head: N_HEAD_KV }];

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    ATTN_Q.with(Q_PAIRS),
    ATTN_K.with(K_PAIRS),
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_BIAS.with(Q_PAIRS).optional(),
    ATTN_K_BIAS.with(K_PAIRS).optional(),
    ATTN_V_BIAS.optional(),
    ATTN_OUTPUT_BIAS.optional(),
    FFN_NORM,
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
