//! Conversion of each architecture: one file per architecture or family, of the same name as in
//! `schemas::arch`, with the metadata keys that it writes and the defaults of its configs.

mod deepseek2;
pub(crate) mod deepseek4;
mod defaults;
pub(crate) mod dflash;
pub(crate) mod eagle3;
mod gemma3;
pub(crate) mod gemma4;
mod glm4moe;
mod gpt_oss;
mod keys;
mod llama;
mod mimo2;
mod nemotron_h;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3next;
mod settings;
mod step35;

use schemas::arch::ArchSpec;
use serde_json::Value;

use crate::hf_config::HfConfig;
use crate::note::Note;

pub(crate) use keys::{HfArch, Model, metadata};
pub(crate) use settings::{check, check_scale};

/// All architectures that can be converted.
static ARCHS: &[HfArch] = &[
    llama::LLAMA,
    qwen2::QWEN2,
    qwen3::QWEN3,
    qwen3::QWEN3MOE,
    qwen3next::QWEN3NEXT,
    qwen35::QWEN35,
    qwen35::QWEN35MOE,
    gemma3::GEMMA3,
    gemma4::GEMMA4,
    glm4moe::GLM4MOE,
    deepseek2::DEEPSEEK2,
    gpt_oss::GPT_OSS,
    step35::STEP35,
    mimo2::MIMO2,
    nemotron_h::NEMOTRON_H,
    nemotron_h::NEMOTRON_H_MOE,
    deepseek4::DEEPSEEK4,
    eagle3::EAGLE3,
    dflash::DFLASH,
    gemma4::GEMMA4_ASSISTANT,
];

/// Returns the conversion of an architecture; `None` if it is not in the list.
pub(crate) fn of(arch: &ArchSpec) -> Option<&'static HfArch> {
    ARCHS.iter().find(|hf_arch| hf_arch.name == arch.name)
}

/// Fills absent fields of a config with the defaults of its model type: that of the whole model, else that of
/// its text part. If both are unknown, the architecture's first defaults are used. Returns a note of those that affect the model's results.
pub(crate) fn fill_defaults(hf_arch: &HfArch, config: &mut HfConfig) -> Option<Note> {
    let types = [
        config.root.get("model_type"),
        config.fields.get("model_type"),
    ];
    let find = |model_type: &Value| {
        let mut all = ARCHS.iter().flat_map(|arch| arch.defaults);
        all.find(|defaults| Some(defaults.model_type) == model_type.as_str())
    };
    let known = types.into_iter().flatten().find_map(find);
    let defaults = known.or_else(|| hf_arch.defaults.first())?;
    defaults::fill(config, defaults, hf_arch.has_positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_of_the_table_is_converted() {
        let names: Vec<&str> = ARCHS.iter().map(|arch| arch.name).collect();
        let expected: Vec<&str> = schemas::arch::all().map(|arch| arch.name).collect();
        assert_eq!(names, expected);
    }
}
