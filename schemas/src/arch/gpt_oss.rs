//! gpt-oss: attention with one sink per head, a sliding window in every second layer; experts with
//! biases, stored as MXFP4 blocks in released checkpoints.

use super::shared_tensors::*;
use super::spec::{ArchSpec, Dim, Need, TensorSpec, Transform};
use super::window::WindowSpec;

/// Required: readers do not fall back to the embedding.
const HEAD: TensorSpec = TensorSpec {
    need: Need::Required,
    ..OUTPUT
};

const ONE: Dim = |_| 1;
/// Interleaved rows of the gate and up projections.
const PAIR: &[Dim] = &[ONE, ONE];
const EXPERT_ROWS: Dim = |h| h.experts.n_expert * h.experts.n_ff;

const GATE_BLOCKS: &[Transform] = &[Transform::TakeRows {
    n_group: EXPERT_ROWS,
    widths: PAIR,
    parts: &[0],
}];
const UP_BLOCKS: &[Transform] = &[Transform::TakeRows {
    n_group: EXPERT_ROWS,
    widths: PAIR,
    parts: &[1],
}];
/// Checkpoints without MXFP4 store experts with inputs as rows.
const TRANSPOSED: Transform = Transform::Transpose { n_group: N_EXPERT };
const GATE_COLUMNS: Transform = Transform::TakeColumns { of: 2, part: 0 };
const UP_COLUMNS: Transform = Transform::TakeColumns { of: 2, part: 1 };

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_BIAS,
    ATTN_K_BIAS,
    ATTN_V_BIAS,
    ATTN_OUTPUT_BIAS,
    attention("attn_sinks.weight", "self_attn.sinks", &[N_HEAD]),
    POST_ATTENTION_NORM,
];

const EXPERTS: &[TensorSpec] = &[
    experts(
        "ffn_gate_inp.weight",
        "mlp.router.weight",
        &[N_EMBD, N_EXPERT],
    ),
    experts("ffn_gate_inp.bias", "mlp.router.bias", &[N_EXPERT]),
    experts(
        "ffn_gate_exps.weight",
        "mlp.experts.gate_up_proj_blocks",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    )
    .with(GATE_BLOCKS)
    .or_packed("mlp.experts.gate_up_proj", &[GATE_COLUMNS, TRANSPOSED]),
    experts(
        "ffn_up_exps.weight",
        "mlp.experts.gate_up_proj_blocks",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    )
    .with(UP_BLOCKS)
    .or_packed("mlp.experts.gate_up_proj", &[UP_COLUMNS, TRANSPOSED]),
    experts(
        "ffn_down_exps.weight",
        "mlp.experts.down_proj_blocks",
        &[N_FF_EXPERT, N_EMBD, N_EXPERT],
    )
    .or_packed("mlp.experts.down_proj", &[TRANSPOSED]),
    experts(
        "ffn_gate_exps.bias",
        "mlp.experts.gate_up_proj_bias",
        &[N_FF_EXPERT, N_EXPERT],
    )
    .with(&[GATE_COLUMNS]),
    experts(
        "ffn_up_exps.bias",
        "mlp.experts.gate_up_proj_bias",
        &[N_FF_EXPERT, N_EXPERT],
    )
    .with(&[UP_COLUMNS]),
    experts(
        "ffn_down_exps.bias",
        "mlp.experts.down_proj_bias",
        &[N_EMBD, N_EXPERT],
    ),
];

pub(super) const GPT_OSS: ArchSpec = ArchSpec {
    name: "gpt-oss",
    hf_classes: &["GptOssForCausalLM"],
    tensors: &[&[TOKEN_EMBD, OUTPUT_NORM, HEAD], LAYER, EXPERTS],
    window: Some(WindowSpec {
        period: 2,
        rope_freq_base: None,
        heads: false,
    }),
    yarn_whole_pairs: false,
    ..ArchSpec::PLAIN
};
