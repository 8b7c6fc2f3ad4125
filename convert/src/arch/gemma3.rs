//! Gemma 3, text only.

use schemas::arch::keys;

use crate::hf_config::SLIDING_THETA;

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, WINDOW, computed, float};

/// Soft capping of logits.
const SOFTCAP: &[Key] = &[computed(keys::FINAL_LOGIT_SOFTCAPPING, |m| {
    let cap = m.config.fields.f64(&["final_logit_softcapping"])?;
    float(cap.filter(|&cap| cap != 0.0))
})];

pub(super) const GEMMA3: HfArch = HfArch {
    name: "gemma3",
    keys: &[SOFTCAP, WINDOW],
    defaults: &[Defaults {
        model_type: "gemma3_text",
        fields: &[
            ("vocab_size", Fill::Integer(262_208)),
            ("hidden_size", Fill::Integer(2304)),
            ("intermediate_size", Fill::Integer(9216)),
            ("num_hidden_layers", Fill::Integer(26)),
            ("num_attention_heads", Fill::Integer(8)),
            ("num_key_value_heads", Fill::Integer(4)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("sliding_window", Fill::Integer(4096)),
        ],
        rope: &[("rope_theta", 1e6), (SLIDING_THETA, 10_000.0)],
    }],
    ..HfArch::PLAIN
};
