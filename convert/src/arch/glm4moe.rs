//! GLM 4.5 to 4.7.

use schemas::arch::keys;
use schemas::gguf::Value;

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, NEXTN, SIGMOID, WEIGHTS_SCALE, computed, rotated_part, u32_key};

/// Partially rotated heads, experts after dense layers, an MTP head.
const KEYS: &[Key] = &[
    computed(keys::ROPE_DIMENSION_COUNT, |m| rotated_part(m, 0.5)),
    u32_key(keys::EXPERT_FEED_FORWARD_LENGTH, &["moe_intermediate_size"]),
    u32_key(keys::EXPERT_SHARED_COUNT, &["n_shared_experts"]),
    u32_key(keys::LEADING_DENSE_BLOCK_COUNT, &["first_k_dense_replace"]),
    computed(keys::EXPERT_GATING_FUNC, |_| Ok(Some(SIGMOID.into()))),
    WEIGHTS_SCALE,
    computed(keys::EXPERT_WEIGHTS_NORM, |m| {
        Ok(m.config.fields.bool(&["norm_topk_prob"])?.map(Value::from))
    }),
    NEXTN,
];

pub(super) const GLM4MOE: HfArch = HfArch {
    name: "glm4moe",
    keys: &[KEYS],
    defaults: &[Defaults {
        model_type: "glm4_moe",
        fields: &[
            ("num_key_value_heads", Fill::Integer(8)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("rms_norm_eps", Fill::Real(1e-5)),
            ("n_routed_experts", Fill::Integer(128)),
            ("num_experts_per_tok", Fill::Integer(8)),
            ("n_shared_experts", Fill::Integer(1)),
            ("moe_intermediate_size", Fill::Integer(1408)),
            ("first_k_dense_replace", Fill::Integer(1)),
            ("routed_scaling_factor", Fill::Real(1.0)),
            ("n_group", Fill::Integer(1)),
            ("topk_group", Fill::Integer(1)),
        ],
        rope: &[("partial_rotary_factor", 0.5)],
    }],
    ..HfArch::PLAIN
};
