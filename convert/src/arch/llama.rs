//! Llama, Mistral and Mixtral.

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, LLAMA_KEYS};

pub(super) const LLAMA: HfArch = HfArch {
    name: "llama",
    keys: &[LLAMA_KEYS],
    defaults: &[
        Defaults {
            model_type: "llama",
            fields: &[
                ("num_key_value_heads", Fill::HeadCount),
                ("head_dim", Fill::HeadWidth),
                ("max_position_embeddings", Fill::Integer(2048)),
                ("rms_norm_eps", Fill::Real(1e-6)),
            ],
            rope: &[],
        },
        Defaults {
            model_type: "mistral",
            fields: &[
                ("num_key_value_heads", Fill::Integer(8)),
                ("head_dim", Fill::HeadWidth),
                ("max_position_embeddings", Fill::Integer(131_072)),
                ("rms_norm_eps", Fill::Real(1e-6)),
            ],
            rope: &[],
        },
        Defaults {
            model_type: "mixtral",
            fields: &[
                ("num_key_value_heads", Fill::Integer(8)),
                ("max_position_embeddings", Fill::Integer(131_072)),
                ("intermediate_size", Fill::Integer(14_336)),
                ("rms_norm_eps", Fill::Real(1e-5)),
                ("num_local_experts", Fill::Integer(8)),
                ("num_experts_per_tok", Fill::Integer(2)),
            ],
            rope: &[("rope_theta", 1e6)],
        },
    ],
    llama_vocab_rules: true,
    ..HfArch::PLAIN
};
