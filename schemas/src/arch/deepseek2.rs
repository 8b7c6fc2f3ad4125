//! DeepSeek V2 and V3, Kimi K2, and GLM 4.7 Flash: multi-head latent attention (MLA) with one compressed KV row per position,
//! leading dense layers, experts chosen by group, an MTP head after the trunk.

use super::hparams::Gating;
use super::nextn;
use super::shared_tensors::*;
use super::spec::{ArchSpec, Dim, MtpSpec, RoutingSpec, TensorSpec, Transform};

/// The projection to the compressed KV row; only MLA architectures have it.
pub(super) const COMPRESSED: &str = "attn_kv_a_mqa.weight";

const N_LORA_Q: Dim = |h| h.mla.n_lora_q;
const N_LORA_KV: Dim = |h| h.mla.n_lora_kv;
const VALUE_DIM: Dim = |h| h.mla.value_dim;
/// Elements of a key head without RoPE.
const PLAIN_DIM: Dim = |h| h.mla.plain_dim(h.n_rot);
const QUERY_ROWS: Dim = |h| h.n_head * h.mla.key_dim;
/// Rows of a direct query projection; 0 if queries have a low-rank projection instead.
const DIRECT_QUERY_ROWS: Dim = |h| match h.mla.n_lora_q {
    0 => h.n_head * h.mla.key_dim,
    _ => 0,
};
const CACHED_ROWS: Dim = |h| h.mla.row_len(h.n_rot);

/// The checkpoint stores the key and value parts of each head in one matrix.
const KEY_AND_VALUE: &[Dim] = &[PLAIN_DIM, VALUE_DIM];
const KEY_PART: &[Transform] = &[
    Transform::TakeRows {
        n_group: N_HEAD,
        widths: KEY_AND_VALUE,
        parts: &[0],
    },
    Transform::Transpose { n_group: N_HEAD },
];
const VALUE_PART: &[Transform] = &[Transform::TakeRows {
    n_group: N_HEAD,
    widths: KEY_AND_VALUE,
    parts: &[1],
}];

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    attention(
        "attn_q.weight",
        "self_attn.q_proj.weight",
        &[N_EMBD, DIRECT_QUERY_ROWS],
    ),
    attention(
        "attn_q_a.weight",
        "self_attn.q_a_proj.weight",
        &[N_EMBD, N_LORA_Q],
    ),
    attention(
        "attn_q_a_norm.weight",
        "self_attn.q_a_layernorm.weight",
        &[N_LORA_Q],
    ),
    attention(
        "attn_q_b.weight",
        "self_attn.q_b_proj.weight",
        &[N_LORA_Q, QUERY_ROWS],
    ),
    attention(
        COMPRESSED,
        "self_attn.kv_a_proj_with_mqa.weight",
        &[N_EMBD, CACHED_ROWS],
    ),
    attention(
        "attn_kv_a_norm.weight",
        "self_attn.kv_a_layernorm.weight",
        &[N_LORA_KV],
    ),
    attention(
        "attn_k_b.weight",
        "self_attn.kv_b_proj.weight",
        &[PLAIN_DIM, N_LORA_KV, N_HEAD],
    )
    .with(KEY_PART),
    attention(
        "attn_v_b.weight",
        "self_attn.kv_b_proj.weight",
        &[N_LORA_KV, VALUE_DIM, N_HEAD],
    )
    .with(VALUE_PART),
    attention(
        "attn_output.weight",
        "self_attn.o_proj.weight",
        &[|h| h.n_head * h.mla.value_dim, N_EMBD],
    ),
    FFN_NORM,
];

pub(super) const DEEPSEEK2: ArchSpec = ArchSpec {
    name: "deepseek2",
    hf_classes: &[
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "KimiVLForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
    ],
    tensors: &[
        ENDS,
        LAYER,
        DENSE,
        EXPERTS,
        &[CHOICE_BIAS.optional()],
        SHARED_EXPERT,
    ],
    mtp: Some(MtpSpec {
        absent: &["attn_q.weight"],
        ..nextn::AFTER_TRUNK
    }),
    routing: RoutingSpec {
        gating: Gating::Softmax,
        normalised: false,
    },
    ..ArchSpec::PLAIN
};
