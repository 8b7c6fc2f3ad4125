//! gpt-oss.

use schemas::arch::keys;

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, WINDOW, u32_key};

/// The width of experts if there are no dense layers.
const KEYS: &[Key] = &[u32_key(
    keys::EXPERT_FEED_FORWARD_LENGTH,
    &["intermediate_size"],
)];

pub(super) const GPT_OSS: HfArch = HfArch {
    name: "gpt-oss",
    keys: &[WINDOW, KEYS],
    defaults: &[Defaults {
        model_type: "gpt_oss",
        fields: &[
            ("num_key_value_heads", Fill::Integer(8)),
            ("head_dim", Fill::Integer(64)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("intermediate_size", Fill::Integer(2880)),
            ("rms_norm_eps", Fill::Real(1e-5)),
            ("sliding_window", Fill::Integer(128)),
            ("num_local_experts", Fill::Integer(128)),
            ("num_experts_per_tok", Fill::Integer(4)),
        ],
        rope: &[("rope_theta", 150_000.0)],
    }],
    ..HfArch::PLAIN
};
