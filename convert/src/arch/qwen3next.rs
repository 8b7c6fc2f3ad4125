//! Qwen3-Next.

use super::defaults::{Defaults, Fill};
use super::keys::{EXPERT_WIDTHS, HfArch};
use super::qwen35::HYBRID;

pub(super) const QWEN3NEXT: HfArch = HfArch {
    name: "qwen3next",
    keys: &[EXPERT_WIDTHS, HYBRID],
    defaults: &[Defaults {
        model_type: "qwen3_next",
        fields: &[
            ("num_key_value_heads", Fill::Integer(2)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("intermediate_size", Fill::Integer(5632)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("linear_conv_kernel_dim", Fill::Integer(4)),
            ("linear_key_head_dim", Fill::Integer(128)),
            ("linear_value_head_dim", Fill::Integer(128)),
            ("linear_num_key_heads", Fill::Integer(16)),
            ("linear_num_value_heads", Fill::Integer(32)),
            ("num_experts", Fill::Integer(512)),
            ("num_experts_per_tok", Fill::Integer(10)),
            ("moe_intermediate_size", Fill::Integer(512)),
            ("shared_expert_intermediate_size", Fill::Integer(512)),
        ],
        rope: &[("partial_rotary_factor", 0.25)],
    }],
    ..HfArch::PLAIN
};
