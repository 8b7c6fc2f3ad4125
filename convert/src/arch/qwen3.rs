//! Qwen3, dense and with experts.

use super::defaults::{Defaults, Fill};
use super::keys::{EXPERT_WIDTHS, HfArch};

pub(super) const QWEN3: HfArch = HfArch {
    name: "qwen3",
    defaults: &[Defaults {
        model_type: "qwen3",
        fields: &[
            ("num_key_value_heads", Fill::Integer(32)),
            ("head_dim", Fill::Integer(128)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
        ],
        rope: &[],
    }],
    ..HfArch::PLAIN
};

pub(super) const QWEN3MOE: HfArch = HfArch {
    name: "qwen3moe",
    keys: &[EXPERT_WIDTHS],
    defaults: &[Defaults {
        model_type: "qwen3_moe",
        fields: &[
            ("num_key_value_heads", Fill::Integer(4)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("intermediate_size", Fill::Integer(6144)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("num_experts_per_tok", Fill::Integer(8)),
            ("moe_intermediate_size", Fill::Integer(768)),
        ],
        rope: &[],
    }],
    ..HfArch::PLAIN
};
