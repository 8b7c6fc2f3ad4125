//! Qwen3.5 and 3.6, dense and with experts: gated delta net layers, gated attention at an interval
//! of layers, an MTP head. Norm weights are stored as `w - 1`, except the delta net's own.

use super::nextn;
use super::shared_tensors::*;
use super::spec::{ArchSpec, Dim, Scope, TensorSpec, Transform};

const ADD_ONE: &[Transform] = &[Transform::AddOne];
/// Per head: the query's rows, then as many rows for the gate.
const Q_GATE_ROWS: Dim = |h| 2 * h.n_head * h.head_dim;
const N_CHANNEL: Dim = |h| h.ssm.n_channel();
const INNER: Dim = |h| h.ssm.inner_size;
const N_HEAD_V: Dim = |h| h.ssm.time_step_rank;
const STATE: Dim = |h| h.ssm.state_size;
/// Value channels follow those of queries and keys.
const V_START: Dim = |h| 2 * h.ssm.key_dim();
const ZERO: Dim = |_| 0;
const ONE: Dim = |_| 1;

const TILE_CHANNELS: &[Transform] = &[Transform::TileValueRows {
    start: V_START,
    width: STATE,
}];
const TILE_INNER: &[Transform] = &[Transform::TileValueRows {
    start: ZERO,
    width: STATE,
}];
const TILE_HEADS: &[Transform] = &[Transform::TileValueRows {
    start: ZERO,
    width: ONE,
}];

const fn delta(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorSpec {
    TensorSpec::new(Scope::Recurrent, gguf, hf, shape)
}

/// Tensors before and after the layers.
pub(super) const OFFSET_ENDS: &[TensorSpec] = &[TOKEN_EMBD, OUTPUT_NORM.with(ADD_ONE), OUTPUT];

/// Norms, and attention with a gated output.
pub(super) const GATED_ATTENTION: &[TensorSpec] = &[
    ATTN_NORM.with(ADD_ONE),
    attention(
        "attn_q.weight",
        "self_attn.q_proj.weight",
        &[N_EMBD, Q_GATE_ROWS],
    ),
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_NORM.with(ADD_ONE),
    ATTN_K_NORM.with(ADD_ONE),
    POST_ATTENTION_NORM.with(ADD_ONE),
];

const DELTA_NET: &[TensorSpec] = &[
    delta(
        "attn_qkv.weight",
        "linear_attn.in_proj_qkv.weight",
        &[N_EMBD, N_CHANNEL],
    )
    .with(TILE_CHANNELS),
    delta(
        "attn_gate.weight",
        "linear_attn.in_proj_z.weight",
        &[N_EMBD, INNER],
    )
    .with(TILE_INNER),
    delta(
        "ssm_alpha.weight",
        "linear_attn.in_proj_a.weight",
        &[N_EMBD, N_HEAD_V],
    )
    .with(TILE_HEADS),
    delta(
        "ssm_beta.weight",
        "linear_attn.in_proj_b.weight",
        &[N_EMBD, N_HEAD_V],
    )
    .with(TILE_HEADS),
    delta(
        "ssm_conv1d.weight",
        "linear_attn.conv1d.weight",
        &[|h| h.ssm.conv_kernel, N_CHANNEL],
    )
    .with(TILE_CHANNELS),
    delta("ssm_dt.bias", "linear_attn.dt_bias", &[N_HEAD_V]).with(TILE_HEADS),
    delta("ssm_a", "linear_attn.A_log", &[N_HEAD_V]).with(&[
        Transform::TileValueRows {
            start: ZERO,
            width: ONE,
        },
        Transform::NegExp,
    ]),
    delta("ssm_norm.weight", "linear_attn.norm.weight", &[STATE]),
    delta(
        "ssm_out.weight",
        "linear_attn.out_proj.weight",
        &[INNER, N_EMBD],
    )
    .with(&[Transform::TileValueColumns { width: STATE }]),
];

pub(super) const QWEN35: ArchSpec = ArchSpec {
    name: "qwen35",
    hf_classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    tensors: &[OFFSET_ENDS, GATED_ATTENTION, DELTA_NET, DENSE],
    mtp: Some(nextn::SEPARATE),
    interleaved_sections: true,
    ..ArchSpec::PLAIN
};

pub(super) const QWEN35MOE: ArchSpec = ArchSpec {
    name: "qwen35moe",
    hf_classes: &[
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ],
    tensors: &[
        OFFSET_ENDS,
        GATED_ATTENTION,
        DELTA_NET,
        EXPERTS,
        GATED_SHARED_EXPERT,
    ],
    mtp: Some(nextn::SEPARATE),
    interleaved_sections: true,
    ..ArchSpec::PLAIN
};
