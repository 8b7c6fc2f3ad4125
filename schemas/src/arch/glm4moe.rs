//! GLM 4.5 to 4.7: leading dense layers, experts chosen by sigmoid, partial RoPE, an MTP head after
//! the trunk.

use super::hparams::Gating;
use super::nextn;
use super::shared_tensors::*;
use super::spec::{ArchSpec, RoutingSpec, TensorSpec};

const LAYER: &[TensorSpec] = &[
    ATTN_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    ATTN_Q_BIAS.optional(),
    ATTN_K_BIAS.optional(),
    ATTN_V_BIAS.optional(),
    ATTN_Q_NORM.optional(),
    ATTN_K_NORM.optional(),
    POST_ATTENTION_NORM,
];

pub(super) const GLM4MOE: ArchSpec = ArchSpec {
    name: "glm4moe",
    hf_classes: &["Glm4MoeForCausalLM"],
    tensors: &[ENDS, LAYER, DENSE, EXPERTS, &[CHOICE_BIAS], SHARED_EXPERT],
    mtp: Some(nextn::AFTER_TRUNK),
    routing: RoutingSpec {
        gating: Gating::Sigmoid,
        normalised: false,
    },
    ..ArchSpec::PLAIN
};
