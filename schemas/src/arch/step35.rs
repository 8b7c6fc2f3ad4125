//! Step 3.5: a sliding window and more heads in most layers, half-rotated heads in the others, one gate
//! per head, chained MTP heads after the trunk that draft one token each.

use super::hparams::Gating;
use super::nextn;
use super::shared_tensors::*;
use super::spec::{ArchSpec, BlockSpec, MtpSpec, RoutingSpec, TensorSpec, Transform};
use super::window::WindowSpec;

/// Checkpoints store all norms as `w - 1`.
const ADD_ONE: &[Transform] = &[Transform::AddOne];

const LAYER: &[TensorSpec] = &[
    ATTN_NORM.with(ADD_ONE),
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_NORM.with(ADD_ONE),
    ATTN_K_NORM.with(ADD_ONE),
    // One row per head: the factor on its output, before the sigmoid.
    attention(
        "attn_gate.weight",
        "self_attn.g_proj.weight",
        &[N_EMBD, N_HEAD],
    )
    .optional(),
    FFN_NORM.with(ADD_ONE),
];

/// The experts are stored together.
const STACKED_EXPERTS: &[TensorSpec] = &[
    experts(ROUTER, "moe.gate.weight", &[N_EMBD, N_EXPERT]),
    experts("exp_probs_b.bias", "moe.router_bias", &[N_EXPERT]).optional(),
    experts(
        "ffn_gate_exps.weight",
        "moe.gate_proj.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    ),
    experts(
        "ffn_up_exps.weight",
        "moe.up_proj.weight",
        &[N_EMBD, N_FF_EXPERT, N_EXPERT],
    ),
    experts(
        "ffn_down_exps.weight",
        "moe.down_proj.weight",
        &[N_FF_EXPERT, N_EMBD, N_EXPERT],
    ),
    experts(
        "ffn_gate_shexp.weight",
        "share_expert.gate_proj.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_up_shexp.weight",
        "share_expert.up_proj.weight",
        &[N_EMBD, N_FF_SHARED],
    ),
    experts(
        "ffn_down_shexp.weight",
        "share_expert.down_proj.weight",
        &[N_FF_SHARED, N_EMBD],
    ),
];

const HEAD: &[TensorSpec] = &[
    nextn::head(
        nextn::EH_PROJ,
        "eh_proj.weight",
        &[|h| 2 * h.n_embd, N_EMBD],
    ),
    nextn::head(nextn::ENORM, "enorm.weight", &[N_EMBD]).with(ADD_ONE),
    nextn::head(nextn::HNORM, "hnorm.weight", &[N_EMBD]).with(ADD_ONE),
    nextn::head(
        nextn::SHARED_HEAD_NORM,
        "shared_head.norm.weight",
        &[N_EMBD],
    )
    .with(ADD_ONE)
    .optional(),
    nextn::head(
        nextn::EMBED_TOKENS,
        "embed_tokens.weight",
        &[N_EMBD, N_VOCAB],
    )
    .optional(),
    nextn::head(
        nextn::SHARED_HEAD_HEAD,
        "shared_head.head.weight",
        &[N_EMBD, N_VOCAB_DRAFT],
    )
    .or_packed("shared_head.output.weight", &[])
    .optional(),
    nextn::head(nextn::D2T, "", &[N_VOCAB_DRAFT]).optional(),
];

pub(super) const STEP35: ArchSpec = ArchSpec {
    name: "step35",
    hf_classes: &["Step3p5ForCausalLM"],
    tensors: &[
        &[TOKEN_EMBD, OUTPUT_NORM.with(ADD_ONE), OUTPUT, ROPE_FREQS],
        LAYER,
        DENSE,
        STACKED_EXPERTS,
    ],
    mtp: Some(MtpSpec {
        tensors: HEAD,
        dense: true,
        ..nextn::AFTER_TRUNK
    }),
    window: Some(WindowSpec {
        period: 4,
        rope_freq_base: None,
        heads: false,
    }),
    routing: RoutingSpec {
        gating: Gating::Sigmoid,
        normalised: true,
    },
    blocks: BlockSpec {
        head_counts: true,
        half_rotation: true,
        ..BlockSpec::EQUAL
    },
    hidden_before_norm: true,
    ..ArchSpec::PLAIN
};
