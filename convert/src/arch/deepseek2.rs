//! DeepSeek V2 and V3, Kimi K2, and GLM 4.7 Flash.

use schemas::arch::keys;
use schemas::gguf::Value;

use crate::error::Error;

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, Model, NEXTN, WEIGHTS_SCALE, computed, float, u32_key};

/// Multi-head latent attention, experts after dense layers, an MTP head. All heads read the same cache row,
/// so common keys about KV heads are overridden.
const KEYS: &[Key] = &[
    computed(keys::HEAD_COUNT_KV, |_| Ok(Some(1u32.into()))),
    u32_key(keys::LEADING_DENSE_BLOCK_COUNT, &["first_k_dense_replace"]),
    u32_key(keys::VOCAB_SIZE, &["vocab_size"]),
    u32_key(keys::Q_LORA_RANK, &["q_lora_rank"]),
    u32_key(keys::KV_LORA_RANK, &["kv_lora_rank"]),
    computed(keys::KEY_LENGTH, |m| {
        sum(m, ["kv_lora_rank", "qk_rope_head_dim"])
    }),
    u32_key(keys::VALUE_LENGTH, &["kv_lora_rank"]),
    computed(keys::KEY_LENGTH_MLA, |m| {
        sum(m, ["qk_nope_head_dim", "qk_rope_head_dim"])
    }),
    u32_key(keys::VALUE_LENGTH_MLA, &["v_head_dim"]),
    u32_key(
        keys::EXPERT_FEED_FORWARD_LENGTH,
        &["moe_intermediate_size", "intermediate_size"],
    ),
    u32_key(keys::EXPERT_COUNT, &["n_routed_experts"]),
    computed(keys::EXPERT_SHARED_COUNT, |m| {
        let n_shared = m.config.fields.u32(&["n_shared_experts"])?;
        Ok(Some(n_shared.unwrap_or(0).into()))
    }),
    WEIGHTS_SCALE,
    computed(keys::EXPERT_WEIGHTS_NORM, |m| {
        let normalised = m.config.fields.bool(&["norm_topk_prob"])?;
        Ok((normalised == Some(true)).then_some(true.into()))
    }),
    u32_key(keys::ROPE_DIMENSION_COUNT, &["qk_rope_head_dim"]),
    computed(keys::YARN_LOG_MULTIPLIER, |m| {
        float(m.config.rope.f64(&["mscale_all_dim"])?.map(|x| 0.1 * x))
    }),
    NEXTN,
];

/// Returns the sum of two fields.
fn sum(m: &Model<'_>, names: [&str; 2]) -> Result<Option<Value>, Error> {
    let [a, b] = names.map(|name| m.config.fields.need_u32(name));
    Ok(Some(a?.saturating_add(b?).into()))
}

/// Fields that configs of Kimi may lack. llama.cpp's converter reads these configs without defaults of the
/// transformers library.
const KIMI: &[(&str, Fill)] = &[
    ("rms_norm_eps", Fill::Real(1e-6)),
    // Readers assume another function if the key is absent.
    ("scoring_func", Fill::Text("sigmoid")),
];

pub(super) const DEEPSEEK2: HfArch = HfArch {
    name: "deepseek2",
    keys: &[KEYS],
    ranks_pre: Some("kimi-k2"),
    headless_classes: &[
        "KimiVLForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
    ],
    defaults: &[
        Defaults {
            model_type: "deepseek_v3",
            fields: &[
                ("intermediate_size", Fill::Integer(18_432)),
                ("moe_intermediate_size", Fill::Integer(2048)),
                ("max_position_embeddings", Fill::Integer(4096)),
                ("rms_norm_eps", Fill::Real(1e-6)),
                ("first_k_dense_replace", Fill::Integer(3)),
                ("q_lora_rank", Fill::Integer(1536)),
                ("kv_lora_rank", Fill::Integer(512)),
                ("qk_nope_head_dim", Fill::Integer(128)),
                ("qk_rope_head_dim", Fill::Integer(64)),
                ("v_head_dim", Fill::Integer(128)),
                ("head_dim", Fill::Field("qk_rope_head_dim")),
                ("n_routed_experts", Fill::Integer(256)),
                ("n_shared_experts", Fill::Integer(1)),
                ("num_experts_per_tok", Fill::Integer(8)),
                ("n_group", Fill::Integer(8)),
                ("topk_group", Fill::Integer(4)),
                ("routed_scaling_factor", Fill::Real(2.5)),
                ("norm_topk_prob", Fill::True),
                // The only scoring function of the class; readers assume it.
                ("scoring_func", Fill::Text("sigmoid")),
            ],
            rope: &[],
        },
        Defaults {
            model_type: "glm4_moe_lite",
            fields: &[
                ("hidden_size", Fill::Integer(2048)),
                ("intermediate_size", Fill::Integer(10_240)),
                ("moe_intermediate_size", Fill::Integer(1536)),
                ("num_hidden_layers", Fill::Integer(47)),
                ("num_attention_heads", Fill::Integer(20)),
                ("max_position_embeddings", Fill::Integer(202_752)),
                ("rms_norm_eps", Fill::Real(1e-5)),
                ("first_k_dense_replace", Fill::Integer(1)),
                ("q_lora_rank", Fill::Integer(768)),
                ("kv_lora_rank", Fill::Integer(512)),
                ("qk_nope_head_dim", Fill::Integer(192)),
                ("qk_rope_head_dim", Fill::Integer(64)),
                ("v_head_dim", Fill::Integer(256)),
                ("n_routed_experts", Fill::Integer(64)),
                ("n_shared_experts", Fill::Integer(1)),
                ("num_experts_per_tok", Fill::Integer(4)),
                ("n_group", Fill::Integer(1)),
                ("topk_group", Fill::Integer(1)),
                ("routed_scaling_factor", Fill::Real(1.8)),
                ("norm_topk_prob", Fill::True),
                // The only scoring function of the class. Readers assume another one if the key is
                // absent, except for files with the released model's numbers of layers and tokens.
                ("scoring_func", Fill::Text("sigmoid")),
            ],
            rope: &[],
        },
        Defaults {
            model_type: "kimi_k2",
            fields: KIMI,
            rope: &[],
        },
        Defaults {
            model_type: "kimi_k25",
            fields: KIMI,
            rope: &[],
        },
        Defaults {
            model_type: "kimi_vl",
            fields: KIMI,
            rope: &[],
        },
        Defaults {
            model_type: "deepseek_v2",
            fields: &[
                ("intermediate_size", Fill::Integer(11_008)),
                ("moe_intermediate_size", Fill::Integer(1407)),
                ("max_position_embeddings", Fill::Integer(2048)),
                ("rms_norm_eps", Fill::Real(1e-6)),
                ("first_k_dense_replace", Fill::Integer(0)),
                ("q_lora_rank", Fill::Integer(1536)),
                ("kv_lora_rank", Fill::Integer(512)),
                ("qk_nope_head_dim", Fill::Integer(128)),
                ("qk_rope_head_dim", Fill::Integer(64)),
                ("v_head_dim", Fill::Integer(128)),
                ("head_dim", Fill::Field("qk_rope_head_dim")),
                ("n_routed_experts", Fill::Integer(64)),
                ("n_shared_experts", Fill::Integer(2)),
                ("routed_scaling_factor", Fill::Real(1.0)),
                ("topk_method", Fill::Text("greedy")),
            ],
            rope: &[],
        },
    ],
    ..HfArch::PLAIN
};
