//! Gemma 3, text only: sliding window attention except in every sixth layer, norms before and after
//! each block. The checkpoint stores norm weights as `w - 1`.

use super::qwen35::OFFSET_ENDS;
use super::shared_tensors::*;
use super::spec::{ArchSpec, Dim, TensorSpec, Transform};
use super::window::WindowSpec;

const ADD_ONE: &[Transform] = &[Transform::AddOne];

const LAYER: &[TensorSpec] = &[
    ATTN_NORM.with(ADD_ONE),
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_NORM.with(ADD_ONE),
    ATTN_K_NORM.with(ADD_ONE),
    POST_ATTENTION_NORM.with(ADD_ONE),
    layer_norm("ffn_norm.weight", "pre_feedforward_layernorm.weight").with(ADD_ONE),
    layer_norm("post_ffw_norm.weight", "post_feedforward_layernorm.weight").with(ADD_ONE),
];

pub(super) const GEMMA3: ArchSpec = ArchSpec {
    name: "gemma3",
    hf_classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    tensors: &[OFFSET_ENDS, LAYER, DENSE],
    window: Some(WindowSpec {
        period: 6,
        rope_freq_base: Some(10_000.0),
        heads: false,
    }),
    scaled_embeddings: true,
    query_width: QUERY_WIDTH,
    ..ArchSpec::PLAIN
};

/// Number of layers of the 27B model, which scales queries differently; no key states it.
const N_LAYER_27B: u32 = 62;

/// The head width, or in the 27B model `n_embd / n_head`.
const QUERY_WIDTH: Dim = |h| match h.n_layer {
    N_LAYER_27B => h.n_embd / h.n_head,
    _ => h.head_dim,
};
