//! Qwen2 and 2.5, dense.

use super::defaults::{Defaults, Fill};
use super::keys::HfArch;

pub(super) const QWEN2: HfArch = HfArch {
    name: "qwen2",
    defaults: &[Defaults {
        model_type: "qwen2",
        fields: &[
            ("num_key_value_heads", Fill::HeadCount),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
        ],
        rope: &[],
    }],
    ..HfArch::PLAIN
};
