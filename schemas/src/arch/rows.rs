//! Rows and axes that several architectures share.

use super::spec::{Dim, Scope, TensorSpec};

pub(super) const N_EMBD: Dim = |h| h.n_embd;
pub(super) const N_VOCAB: Dim = |h| h.n_vocab;
pub(super) const N_VOCAB_DRAFT: Dim = |h| h.n_vocab_draft;
pub(super) const N_FF: Dim = |h| h.n_ff;
pub(super) const N_HEAD: Dim = |h| h.n_head;
pub(super) const N_HEAD_KV: Dim = |h| h.n_head_kv;
pub(super) const HEAD_DIM: Dim = |h| h.head_dim;
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
/// Absent where the head is tied to the embedding.
pub(super) const OUTPUT: TensorSpec = TensorSpec::new(
    Scope::Model,
    "output.weight",
    "lm_head.weight",
    &[N_EMBD, N_VOCAB],
)
.optional();
/// Frequency factors of llama3 scaling, one for each rotated pair.
pub(super) const ROPE_FREQS: TensorSpec =
    TensorSpec::new(Scope::Model, "rope_freqs.weight", "", &[|h| h.n_rot / 2]).optional();
pub(super) const FFN_GATE: TensorSpec = TensorSpec::new(
    Scope::Layer,
    "ffn_gate.weight",
    "mlp.gate_proj.weight",
    &[N_EMBD, N_FF],
);
pub(super) const FFN_UP: TensorSpec = TensorSpec::new(
    Scope::Layer,
    "ffn_up.weight",
    "mlp.up_proj.weight",
    &[N_EMBD, N_FF],
);
pub(super) const FFN_DOWN: TensorSpec = TensorSpec::new(
    Scope::Layer,
    "ffn_down.weight",
    "mlp.down_proj.weight",
    &[N_FF, N_EMBD],
);

/// A row of the attention block, by its name after `self_attn.` and `attn_`.
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
