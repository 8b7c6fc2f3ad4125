//! Tensors and dimensions that several architectures share.

use super::spec::{Dim, Scope, TensorSpec, Transform};

pub(super) const N_EMBD: Dim = |h| h.n_embd;
pub(super) const N_VOCAB: Dim = |h| h.n_vocab;
pub(super) const N_VOCAB_DRAFT: Dim = |h| h.n_vocab_draft;
pub(super) const N_FF: Dim = |h| h.n_ff;
pub(super) const N_HEAD: Dim = |h| h.n_head;
pub(super) const N_HEAD_KV: Dim = |h| h.n_head_kv;
pub(super) const HEAD_DIM: Dim = |h| h.head_dim;
pub(super) const N_EXPERT: Dim = |h| h.experts.n_expert;
pub(super) const N_FF_EXPERT: Dim = |h| h.experts.n_ff;
pub(super) const N_FF_SHARED: Dim = |h| h.experts.n_ff_shared;
pub(super) const Q_ROWS: Dim = |h| h.n_head * h.head_dim;
pub(super) const KV_ROWS: Dim = |h| h.n_head_kv * h.head_dim;

pub(super) const TOKEN_EMBD: TensorSpec = TensorSpec::new(
    Scope::Model,
    "token_embd.weight",
    "model.embed_tokens.weight",
    &[N_EMBD, N_VOCAB],
);
pub(super) const OUTPUT_NORM: TensorSpec = TensorSpec::new(
    Scope::Model,
    "output_norm.weight",
    "model.norm.weight",
    &[N_EMBD],
);
/// Absent if the output is tied to the embedding.
pub(super) const OUTPUT: TensorSpec = TensorSpec::new(
    Scope::Model,
    "output.weight",
    "lm_head.weight",
    &[N_EMBD, N_VOCAB],
)
.optional();
/// Frequency factors of Llama 3 scaling, one per rotated pair.
pub(super) const ROPE_FREQS: TensorSpec = TensorSpec::new(
    Scope::Model,
    super::rope::ROPE_FREQS,
    "",
    &[|h| h.n_rot / 2],
)
.optional();

/// Tensors before and after the layers, as most checkpoints name them.
pub(super) const ENDS: &[TensorSpec] = &[TOKEN_EMBD, OUTPUT_NORM, OUTPUT];

/// Norm before attention.
pub(super) const ATTN_NORM: TensorSpec = layer_norm("attn_norm.weight", "input_layernorm.weight");
/// Norm between attention and the feed-forward block.
pub(super) const FFN_NORM: TensorSpec =
    layer_norm("ffn_norm.weight", "post_attention_layernorm.weight");
/// The same norm, under the GGUF name of later architectures.
pub(super) const POST_ATTENTION_NORM: TensorSpec = layer_norm(
    "post_attention_norm.weight",
    "post_attention_layernorm.weight",
);

pub(super) const ATTN_Q: TensorSpec = attention(
    "attn_q.weight",
    "self_attn.q_proj.weight",
    &[N_EMBD, Q_ROWS],
);
pub(super) const ATTN_K: TensorSpec = attention(
    "attn_k.weight",
    "self_attn.k_proj.weight",
    &[N_EMBD, KV_ROWS],
);
pub(super) const ATTN_V: TensorSpec = attention(
    "attn_v.weight",
    "self_attn.v_proj.weight",
    &[N_EMBD, KV_ROWS],
);
pub(super) const ATTN_OUTPUT: TensorSpec = attention(
    "attn_output.weight",
    "self_attn.o_proj.weight",
    &[Q_ROWS, N_EMBD],
);
pub(super) const ATTN_Q_BIAS: TensorSpec =
    attention("attn_q.bias", "self_attn.q_proj.bias", &[Q_ROWS]);
pub(super) const ATTN_K_BIAS: TensorSpec =
    attention("attn_k.bias", "self_attn.k_proj.bias", &[KV_ROWS]);
pub(super) const ATTN_V_BIAS: TensorSpec =
    attention("attn_v.bias", "self_attn.v_proj.bias", &[KV_ROWS]);
pub(super) const ATTN_OUTPUT_BIAS: TensorSpec =
    attention("attn_output.bias", "self_attn.o_proj.bias", &[N_EMBD]);
pub(super) const ATTN_Q_NORM: TensorSpec =
    attention("attn_q_norm.weight", "self_attn.q_norm.weight", &[HEAD_DIM]);
pub(super) const ATTN_K_NORM: TensorSpec =
    attention("attn_k_norm.weight", "self_attn.k_norm.weight", &[HEAD_DIM]);

/// The gated feed-forward block of dense layers.
pub(super) const DENSE: &[TensorSpec] = &[
    TensorSpec::new(
        Scope::Dense,
        "ffn_gate.weight",
        "mlp.gate_proj.weight",
        &[N_EMBD, N_FF],
    ),
    TensorSpec::new(
        Scope::Dense,
        "ffn_up.weight",
        "mlp.up_proj.weight",
        &[N_EMBD, N_FF],
    ),
    TensorSpec::new(
        Scope::Dense,
        "ffn_down.weight",
        "mlp.down_proj.weight",
        &[N_FF, N_EMBD],
    ),
];

/// Rows of the fused gate and up projection of some checkpoints.
const GATE_AND_UP: &[Dim] = &[N_FF_EXPERT, N_FF_EXPERT];
const GATE_HALF: &[Transform] = &[Transform::TakeRows {
    n_group: N_EXPERT,
    widths: GATE_AND_UP,
    parts: &[0],
}];
const UP_HALF: &[Transform] = &[Transform::TakeRows {
    n_group: N_EXPERT,
    widths: GATE_AND_UP,
    parts: &[1],
}];

/// GGUF name of the router; blocks with experts have one.
pub const ROUTER: &str = "ffn_gate_inp.weight";

/// The router and the experts.
pub(super) const EXPERTS: &[TensorSpec] = &[
    experts(ROUTER, "mlp.gate.weight", &[N_EMBD, N_EXPERT]),
    experts(
        "ffn_gate_exps.weight",
        "mlp.experts.{}.gate_proj.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    )
    .or_packed("mlp.experts.gate_up_proj", GATE_HALF),
    experts(
        "ffn_up_exps.weight",
        "mlp.experts.{}.up_proj.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    )
    .or_packed("mlp.experts.gate_up_proj", UP_HALF),
    experts(
        "ffn_down_exps.weight",
        "mlp.experts.{}.down_proj.weight",
        &[N_FF_EXPERT, N_EMBD, N_EXPERT],
    )
    .or_packed("mlp.experts.down_proj", &[]),
];

/// The shared expert, with its own gate.
pub(super) const GATED_SHARED_EXPERT: &[TensorSpec] = &[
    experts(
        "ffn_gate_inp_shexp.weight",
        "mlp.shared_expert_gate.weight",
        &[N_EMBD, |_| 1],
    ),
    experts(
        "ffn_gate_shexp.weight",
        "mlp.shared_expert.gate_proj.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_up_shexp.weight",
        "mlp.shared_expert.up_proj.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_down_shexp.weight",
        "mlp.shared_expert.down_proj.weight",
        &[N_FF_SHARED, N_EMBD],
    ),
];

/// Bias of the router that affects the choice of experts but not their weights.
pub(super) const CHOICE_BIAS: TensorSpec = experts(
    "exp_probs_b.bias",
    "mlp.gate.e_score_correction_bias",
    &[N_EXPERT],
);

/// The shared experts.
pub(super) const SHARED_EXPERT: &[TensorSpec] = &[
    experts(
        "ffn_gate_shexp.weight",
        "mlp.shared_experts.gate_proj.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_up_shexp.weight",
        "mlp.shared_experts.up_proj.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_down_shexp.weight",
        "mlp.shared_experts.down_proj.weight",
        &[N_FF_SHARED, N_EMBD],
    ),
];

/// A tensor of a mixture of experts.
pub(super) const fn experts(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorSpec {
    TensorSpec::new(Scope::Experts, gguf, hf, shape)
}

/// A tensor of attention.
pub(super) const fn attention(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorSpec {
    TensorSpec::new(Scope::Attention, gguf, hf, shape)
}

/// A norm of every layer.
pub(super) const fn layer_norm(gguf: &'static str, hf: &'static str) -> TensorSpec {
    TensorSpec::new(Scope::Layer, gguf, hf, &[N_EMBD])
}
