//! Qwen2 and 2.5 dense: attention with biases, rotate-half rotation.

use super::rows::*;
use super::spec::ArchSpec;

pub(super) const QWEN2: ArchSpec = ArchSpec {
    name: "qwen2",
    hf_classes: &["Qwen2ForCausalLM"],
    tensors: &[ENDS, NORMS, PROJECTIONS, PROJECTION_BIASES, DENSE],
    ..ArchSpec::PLAIN
};
