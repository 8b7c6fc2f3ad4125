//! MiMo V2: a sliding window, sinks and more KV heads in most layers, value heads narrower than key
//! heads, chained MTP heads that draft one token each.

use super::hparams::Gating;
use super::nextn;
use super::shared_tensors::*;
use super::spec::{ArchSpec, BlockSpec, Dim, MtpSpec, Numbering, RoutingSpec, TensorSpec};
use super::window::WindowSpec;

/// Rows of all queries, then of all keys, then of all values.
const QKV_ROWS: Dim = |h| (h.n_head + h.n_head_kv) * h.head_dim + h.n_head_kv * h.value_dim;
const VALUE_ROWS: Dim = |h| h.n_head_kv * h.value_dim;

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    // Checkpoints have either this tensor or the next three.
    attention(
        "attn_qkv.weight",
        "self_attn.qkv_proj.weight",
        &[N_EMBD, QKV_ROWS],
    )
    .optional(),
    ATTN_Q.optional(),
    ATTN_K.optional(),
    attention(
        "attn_v.weight",
        "self_attn.v_proj.weight",
        &[N_EMBD, VALUE_ROWS],
    )
    .optional(),
    attention(
        "attn_output.weight",
        "self_attn.o_proj.weight",
        &[|h| h.n_head * h.value_dim, N_EMBD],
    ),
    // Only layers of one kind have sinks.
    attention(
        "attn_sinks.weight",
        "self_attn.attention_sink_bias",
        &[N_HEAD],
    )
    .optional(),
    FFN_NORM,
];

const HEAD: &[TensorSpec] = &[
    nextn::head(
        nextn::EH_PROJ,
        "eh_proj.weight",
        &[|h| 2 * h.n_embd, N_EMBD],
    ),
    nextn::head(nextn::ENORM, "enorm.weight", &[N_EMBD]),
    nextn::head(nextn::HNORM, "hnorm.weight", &[N_EMBD]),
    nextn::head(
        nextn::LAYER_OUTPUT_NORM,
        "final_layernorm.weight",
        &[N_EMBD],
    )
    .optional(),
    nextn::head(
        nextn::SHARED_HEAD_NORM,
        "shared_head.norm.weight",
        &[N_EMBD],
    )
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
    .optional(),
    nextn::head(nextn::D2T, "", &[N_VOCAB_DRAFT]).optional(),
];

pub(super) const MIMO2: ArchSpec = ArchSpec {
    name: "mimo2",
    hf_classes: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
    tensors: &[ENDS, LAYER, DENSE, EXPERTS, &[CHOICE_BIAS.optional()]],
    mtp: Some(MtpSpec {
        numbering: Numbering::Zero,
        tensors: HEAD,
        dense: true,
        ..MtpSpec::PLAIN
    }),
    window: Some(WindowSpec {
        period: 6,
        rope_freq_base: None,
        heads: false,
    }),
    routing: RoutingSpec {
        gating: Gating::Sigmoid,
        normalised: true,
    },
    blocks: BlockSpec {
        head_counts: true,
        narrow_values: true,
        dense_by_tensors: true,
        ..BlockSpec::EQUAL
    },
    hidden_before_norm: true,
    ..ArchSpec::PLAIN
};
