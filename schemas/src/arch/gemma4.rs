//! Gemma 4, text only: layers with a sliding window have their own head size, the last layers attend to
//! the keys and values of earlier ones, and small models have an embedding of each token for each layer.
//!
//! Its assistants are drafts without keys and values: their layers attend to those of the target.

use super::assistant::{N_CENTROID, N_EMBD_TARGET};
use super::shared_tensors::*;
use super::spec::{ArchSpec, BlockSpec, Dim, Scope, TensorSpec};
use super::window::WindowSpec;

const PER_LAYER: Dim = |h| h.n_embd_per_layer;
const ALL_PER_LAYER: Dim = |h| h.n_embd_per_layer * u64::from(h.n_layer);
/// Rows of the keys of layers with their own keys and values; 0 for other layers.
const OWN_KV_ROWS: Dim = |h| if h.shares_kv { 0 } else { KV_ROWS(h) };
/// Rows of keys that some checkpoints store although no layer uses them.
const UNUSED_KV_ROWS: Dim = |h| if h.shares_kv { KV_ROWS(h) } else { 0 };
const OWN_HEAD_DIM: Dim = |h| if h.shares_kv { 0 } else { h.head_dim };
const UNUSED_HEAD_DIM: Dim = |h| if h.shares_kv { h.head_dim } else { 0 };

const MODEL: &[TensorSpec] = &[
    // Full attention rotates a part of each head: pairs with a huge divisor do not turn.
    ROPE_FREQS,
    TOKEN_EMBD,
    OUTPUT_NORM,
    OUTPUT,
    TensorSpec::new(
        Scope::Model,
        "per_layer_token_embd.weight",
        "model.embed_tokens_per_layer.weight",
        &[ALL_PER_LAYER, N_VOCAB],
    ),
    TensorSpec::new(
        Scope::Model,
        "per_layer_model_proj.weight",
        "model.per_layer_model_projection.weight",
        &[N_EMBD, ALL_PER_LAYER],
    ),
    TensorSpec::new(
        Scope::Model,
        "per_layer_proj_norm.weight",
        "model.per_layer_projection_norm.weight",
        &[PER_LAYER],
    ),
];

/// Tensors that layers of a model and of its assistant have.
const QUERY_LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    ATTN_Q,
    ATTN_Q_NORM,
    ATTN_OUTPUT,
    POST_ATTENTION_NORM,
    layer_norm("ffn_norm.weight", "pre_feedforward_layernorm.weight"),
    layer_norm("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
    TensorSpec::new(
        Scope::Layer,
        "layer_output_scale.weight",
        "layer_scalar",
        &[|_| 1],
    )
    .optional(),
];

const KEY_VALUE_LAYER: &[TensorSpec] = &[
    attention(
        "attn_k.weight",
        "self_attn.k_proj.weight",
        &[N_EMBD, OWN_KV_ROWS],
    ),
    attention(
        "attn_k_norm.weight",
        "self_attn.k_norm.weight",
        &[OWN_HEAD_DIM],
    ),
    // Without it, values are keys before their norm.
    ATTN_V.optional(),
    attention(
        "attn_k.weight",
        "self_attn.k_proj.weight",
        &[N_EMBD, UNUSED_KV_ROWS],
    )
    .optional(),
    attention(
        "attn_k_norm.weight",
        "self_attn.k_norm.weight",
        &[UNUSED_HEAD_DIM],
    )
    .optional(),
];

const PER_LAYER_EMBEDDING: &[TensorSpec] = &[
    TensorSpec::new(
        Scope::Layer,
        "inp_gate.weight",
        "per_layer_input_gate.weight",
        &[N_EMBD, PER_LAYER],
    ),
    TensorSpec::new(
        Scope::Layer,
        "proj.weight",
        "per_layer_projection.weight",
        &[PER_LAYER, N_EMBD],
    ),
    TensorSpec::new(
        Scope::Layer,
        "post_norm.weight",
        "post_per_layer_input_norm.weight",
        // A model without per-layer embeddings has no such norm.
        &[|h| if h.n_embd_per_layer > 0 { h.n_embd } else { 0 }],
    ),
];

/// The router, which has a norm of its own, and the experts beside the dense block.
const EXPERTS_BESIDE: &[TensorSpec] = &[
    experts(ROUTER, "router.proj.weight", &[N_EMBD, N_EXPERT]),
    experts("ffn_gate_inp.scale", "router.scale", &[N_EMBD]),
    // One tensor or two.
    experts(
        "ffn_gate_up_exps.weight",
        "experts.gate_up_proj",
        &[N_EMBD, |h| 2 * h.experts.n_ff, N_EXPERT],
    )
    .optional(),
    experts("ffn_gate_exps.weight", "", &[N_EMBD, N_FF_EXPERT, N_EXPERT]).optional(),
    experts("ffn_up_exps.weight", "", &[N_EMBD, N_FF_EXPERT, N_EXPERT]).optional(),
    experts(
        "ffn_down_exps.weight",
        "experts.down_proj",
        &[N_FF_EXPERT, N_EMBD, N_EXPERT],
    ),
    experts(
        "ffn_down_exps.scale",
        "router.per_expert_scale",
        &[N_EXPERT],
    ),
    experts(
        "pre_ffw_norm_2.weight",
        "pre_feedforward_layernorm_2.weight",
        &[N_EMBD],
    ),
    experts(
        "post_ffw_norm_1.weight",
        "post_feedforward_layernorm_1.weight",
        &[N_EMBD],
    ),
    experts(
        "post_ffw_norm_2.weight",
        "post_feedforward_layernorm_2.weight",
        &[N_EMBD],
    ),
];

/// Values of a model and of its assistant.
const GEMMA4_LAYERS: ArchSpec = ArchSpec {
    window: Some(WindowSpec {
        period: 6,
        rope_freq_base: Some(10_000.0),
        heads: false,
    }),
    scaled_embeddings: true,
    query_width: |_| 1,
    blocks: BlockSpec {
        head_counts: true,
        window_heads: true,
        dense_by_tensors: true,
        dense_beside_experts: true,
        ..BlockSpec::EQUAL
    },
    ..ArchSpec::PLAIN
};

pub(super) const GEMMA4: ArchSpec = ArchSpec {
    name: "gemma4",
    hf_classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    tensors: &[
        MODEL,
        QUERY_LAYER,
        KEY_VALUE_LAYER,
        DENSE,
        EXPERTS_BESIDE,
        PER_LAYER_EMBEDDING,
    ],
    ..GEMMA4_LAYERS
};

const ASSISTANT: &[TensorSpec] = &[
    ROPE_FREQS,
    TOKEN_EMBD,
    OUTPUT_NORM,
    // From the target's embedding of a token and its hidden state before.
    TensorSpec::new(
        Scope::Model,
        PRE_PROJECTION,
        "pre_projection.weight",
        &[|h| 2 * N_EMBD_TARGET(h), N_EMBD],
    ),
    // To the hidden state that the next step reads.
    TensorSpec::new(
        Scope::Model,
        POST_PROJECTION,
        "post_projection.weight",
        &[N_EMBD, N_EMBD_TARGET],
    ),
    TensorSpec::new(
        Scope::Model,
        CENTROIDS,
        "masked_embedding.centroids.weight",
        &[N_EMBD, N_CENTROID],
    ),
    TensorSpec::new(
        Scope::Model,
        TOKEN_ORDERING,
        "",
        &[|h| if N_CENTROID(h) > 0 { h.n_vocab } else { 0 }],
    ),
];

/// Projection of the input of an assistant.
pub const PRE_PROJECTION: &str = "nextn.pre_projection.weight";
/// Projection to the hidden state that an assistant's next step reads.
pub const POST_PROJECTION: &str = "nextn.post_projection.weight";
/// Centers of clusters of tokens.
pub const CENTROIDS: &str = "masked_embd_centroids.weight";
/// All tokens, cluster by cluster.
pub const TOKEN_ORDERING: &str = "masked_embd_ordering";

pub(super) const GEMMA4_ASSISTANT: ArchSpec = ArchSpec {
    name: "gemma4-assistant",
    hf_classes: &["Gemma4AssistantForCausalLM"],
    tensors: &[ASSISTANT, QUERY_LAYER, DENSE],
    assistant: true,
    ..GEMMA4_LAYERS
};
