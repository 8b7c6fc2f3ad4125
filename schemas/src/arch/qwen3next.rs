//! Qwen3-Next: the layers of Qwen3.5 with experts. Only the delta net's projections differ: the
//! checkpoint groups their rows by key head, and value heads keep this order.

use super::nextn;
use super::qwen35::{GATED_ATTENTION, OFFSET_ENDS};
use super::shared_tensors::*;
use super::spec::{ArchSpec, Dim, Scope, TensorSpec, Transform};

const N_CHANNEL: Dim = |h| h.ssm.n_channel();
const INNER: Dim = |h| h.ssm.inner_size;
const N_HEAD_K: Dim = |h| h.ssm.group_count;
const N_HEAD_V: Dim = |h| h.ssm.time_step_rank;
const STATE: Dim = |h| h.ssm.state_size;
/// Rows of the value heads of one key head.
const GROUP: Dim = |h| h.ssm.inner_size / h.ssm.group_count;

/// Rows per key head: query, key, value heads, gates.
const BY_KEY_HEAD: &[Dim] = &[STATE, STATE, GROUP, GROUP];
const QUERY_KEY_VALUE: &[Transform] = &[Transform::TakeRows {
    n_group: N_HEAD_K,
    widths: BY_KEY_HEAD,
    parts: &[0, 1, 2],
}];
const GATES: &[Transform] = &[Transform::TakeRows {
    n_group: N_HEAD_K,
    widths: BY_KEY_HEAD,
    parts: &[3],
}];

const fn delta(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorSpec {
    TensorSpec::new(Scope::Recurrent, gguf, hf, shape)
}

const DELTA_NET: &[TensorSpec] = &[
    delta(
        "attn_qkv.weight",
        "linear_attn.in_proj_qkvz.weight",
        &[N_EMBD, N_CHANNEL],
    )
    .with(QUERY_KEY_VALUE),
    delta(
        "attn_gate.weight",
        "linear_attn.in_proj_qkvz.weight",
        &[N_EMBD, INNER],
    )
    .with(GATES),
    // Per key head: beta for each of its value heads, then alpha for each.
    delta(
        "ssm_ba.weight",
        "linear_attn.in_proj_ba.weight",
        &[N_EMBD, |h| 2 * h.ssm.time_step_rank],
    ),
    delta(
        "ssm_conv1d.weight",
        "linear_attn.conv1d.weight",
        &[|h| h.ssm.conv_kernel, N_CHANNEL],
    ),
    delta("ssm_dt.bias", "linear_attn.dt_bias", &[N_HEAD_V]),
    delta("ssm_a", "linear_attn.A_log", &[N_HEAD_V]).with(&[Transform::NegExp]),
    delta("ssm_norm.weight", "linear_attn.norm.weight", &[STATE]),
    delta(
        "ssm_out.weight",
        "linear_attn.out_proj.weight",
        &[INNER, N_EMBD],
    ),
];

pub(super) const QWEN3NEXT: ArchSpec = ArchSpec {
    name: "qwen3next",
    hf_classes: &["Qwen3NextForCausalLM"],
    tensors: &[
        OFFSET_ENDS,
        GATED_ATTENTION,
        DELTA_NET,
        EXPERTS,
        GATED_SHARED_EXPERT,
    ],
    mtp: Some(nextn::SEPARATE),
    ..ArchSpec::PLAIN
};
