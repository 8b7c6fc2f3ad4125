//! Qwen3.5 and 3.6, dense and with experts.

use schemas::arch::keys;
use schemas::gguf::Value;

use crate::error::Error;

use super::defaults::{Defaults, Fill};
use super::keys::{
    EXPERT_WIDTHS, HfArch, Key, Model, NEXTN, all_but_every, computed, layers_of_kind,
    rotated_part, u32_key,
};

/// MTP head and recurrent layers of the Qwen family.
pub(super) const HYBRID: &[Key] = &[
    NEXTN,
    u32_key(keys::SSM_CONV_KERNEL, &["linear_conv_kernel_dim"]),
    u32_key(keys::SSM_STATE_SIZE, &["linear_key_head_dim"]),
    u32_key(keys::SSM_GROUP_COUNT, &["linear_num_key_heads"]),
    u32_key(keys::SSM_TIME_STEP_RANK, &["linear_num_value_heads"]),
    computed(keys::SSM_INNER_SIZE, |m| {
        let width = m.config.fields.need_u32("linear_value_head_dim")?;
        let n_head = m.config.fields.need_u32("linear_num_value_heads")?;
        Ok(Some(width.saturating_mul(n_head).into()))
    }),
    computed(keys::RECURRENT_LAYERS, recurrent_layers),
    computed(keys::FULL_ATTENTION_INTERVAL, |m| {
        Ok(Some(full_attention_interval(m)?.into()))
    }),
    computed(keys::ROPE_DIMENSION_COUNT, |m| rotated_part(m, 0.25)),
];

/// M-RoPE of the Qwen family.
const SECTIONS: &[Key] = &[computed(
    // Readers require the key, so a config without sections gets the family's default.
    keys::ROPE_DIMENSION_SECTIONS,
    |m| {
        let given = m.config.rope.i32s(&["mrope_section"])?;
        Ok(given.is_none().then(|| vec![11, 11, 10, 0].into()))
    },
)];

fn full_attention_interval(m: &Model<'_>) -> Result<u32, Error> {
    let interval = m.config.fields.u32(&["full_attention_interval"])?;
    Ok(interval.unwrap_or(4))
}

/// Returns which layers are recurrent: by the config's list of kinds, or all but every few. MTP layers
/// never are.
fn recurrent_layers(m: &Model<'_>) -> Result<Option<Value>, Error> {
    let n_layer = m.config.fields.need_u32("num_hidden_layers")?;
    let mut recurrent = match layers_of_kind(m, "linear_attention")? {
        Some(layers) => layers,
        None => all_but_every(full_attention_interval(m)?, n_layer),
    };
    recurrent.extend((0..m.n_mtp).map(|_| false));
    Ok(Some(recurrent.into()))
}

pub(super) const QWEN35: HfArch = HfArch {
    name: "qwen35",
    keys: &[HYBRID, SECTIONS],
    defaults: &[Defaults {
        model_type: "qwen3_5_text",
        fields: &[
            ("num_key_value_heads", Fill::Integer(4)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("linear_conv_kernel_dim", Fill::Integer(4)),
            ("linear_key_head_dim", Fill::Integer(128)),
            ("linear_value_head_dim", Fill::Integer(128)),
            ("linear_num_key_heads", Fill::Integer(16)),
            ("linear_num_value_heads", Fill::Integer(32)),
        ],
        rope: &[("partial_rotary_factor", 0.25)],
    }],
    ..HfArch::PLAIN
};

pub(super) const QWEN35MOE: HfArch = HfArch {
    name: "qwen35moe",
    keys: &[EXPERT_WIDTHS, HYBRID, SECTIONS],
    defaults: &[Defaults {
        model_type: "qwen3_5_moe_text",
        fields: &[
            ("num_key_value_heads", Fill::Integer(2)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("linear_conv_kernel_dim", Fill::Integer(4)),
            ("linear_key_head_dim", Fill::Integer(128)),
            ("linear_value_head_dim", Fill::Integer(128)),
            ("linear_num_key_heads", Fill::Integer(16)),
            ("linear_num_value_heads", Fill::Integer(32)),
            ("num_experts", Fill::Integer(256)),
            ("num_experts_per_tok", Fill::Integer(8)),
            ("moe_intermediate_size", Fill::Integer(512)),
            ("shared_expert_intermediate_size", Fill::Integer(512)),
        ],
        rope: &[("partial_rotary_factor", 0.25)],
    }],
    ..HfArch::PLAIN
};
