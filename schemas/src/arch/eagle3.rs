//! EAGLE-3: a one-layer draft model that reads three hidden states of its target. It has the
//! target's tokens; its own output may have only some of them, listed in [`D2T`].

use super::shared_tensors::*;
use super::spec::{ArchSpec, Dim, Scope, TensorSpec, Transform};
use crate::vocab::D2T;

/// Projects the concatenated features to the embedding width.
pub const FC: &str = "fc.weight";
/// Norm of the concatenated features; only some drafts have it.
pub const ENC_OUTPUT_NORM: &str = "enc.output_norm.weight";

/// Input width of attention: the token embedding, concatenated with the features.
const ATTENTION_IN: Dim = |h| 2 * h.n_embd;
const N_FEATURE: Dim = |h| h.features.as_ref().map_or(0, |f| f.width());

const AROUND: &[TensorSpec] = &[
    // Drafts without their own embedding or output use the target's.
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
