//! EAGLE-3: one layer that drafts from three hidden states of its target. It has as many tokens as
//! the target; its own output head may know only some of them, named by [`D2T`].

use super::rows::*;
use super::spec::{ArchSpec, Dim, Scope, TensorSpec, Transform};
use crate::vocab::D2T;

/// Fuses the joined features into one row.
pub const FC: &str = "fc.weight";
/// Normalises the joined features, where the draft wants that.
pub const ENC_OUTPUT_NORM: &str = "enc.output_norm.weight";

/// The token's embedding, then the features: what attention reads.
const ATTENTION_IN: Dim = |h| 2 * h.n_embd;
const N_FEATURE: Dim = |h| h.features.as_ref().map_or(0, |f| f.width());

const AROUND: &[TensorSpec] = &[
    // Without one of its own, the draft has the target's embedding, or output head.
    TOKEN_EMBD.optional(),
    OUTPUT_NORM,
    TensorSpec::new(
        Scope::Model,
        "output.weight",
        "lm_head.weight",
        &[N_EMBD, N_VOCAB_DRAFT],
    )
    .optional(),
    TensorSpec::new(Scope::Model, FC, FC, &[N_FEATURE, N_EMBD]),
    TensorSpec::new(
        Scope::Model,
        ENC_OUTPUT_NORM,
        "input_norm.weight",
        &[N_FEATURE],
    )
    .optional(),
    TensorSpec::new(Scope::Model, D2T, "", &[N_VOCAB_DRAFT]).optional(),
    ROPE_FREQS,
];

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    layer_norm("attn_norm_2.weight", "hidden_norm.weight"),
    attention(
        "attn_q.weight",
        "self_attn.q_proj.weight",
        &[ATTENTION_IN, Q_ROWS],
    )
    .with(&[Transform::RopePairs { n_head: N_HEAD }]),
    attention(
        "attn_k.weight",
        "self_attn.k_proj.weight",
        &[ATTENTION_IN, KV_ROWS],
    )
    .with(&[Transform::RopePairs { n_head: N_HEAD_KV }]),
    attention(
        "attn_v.weight",
        "self_attn.v_proj.weight",
        &[ATTENTION_IN, KV_ROWS],
    ),
    ATTN_OUTPUT,
    FFN_NORM,
];

pub(super) const EAGLE3: ArchSpec = ArchSpec {
    name: "eagle3",
    hf_classes: &[
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
    ],
    tensors: &[AROUND, LAYER, DENSE],
    ..ArchSpec::PLAIN
};
