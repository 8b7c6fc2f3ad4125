//! Qwen3, dense and with experts: attention with normalised queries and keys, rotate-half rotation.

use super::rows::*;
use super::spec::ArchSpec;

pub(super) const QWEN3: ArchSpec = ArchSpec {
    name: "qwen3",
    hf_classes: &["Qwen3ForCausalLM"],
    tensors: &[ENDS, NORMS, PROJECTIONS, HEAD_NORMS, DENSE],
    ..ArchSpec::PLAIN
};

pub(super) const QWEN3MOE: ArchSpec = ArchSpec {
    name: "qwen3moe",
    hf_classes: &["Qwen3MoeForCausalLM"],
    tensors: &[ENDS, NORMS, PROJECTIONS, HEAD_NORMS, EXPERTS],
    ..ArchSpec::PLAIN
};
