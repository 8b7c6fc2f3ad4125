//! Finds the architecture of a checkpoint by the class name in its config.

use schemas::arch::{self as table, ArchSpec};

use crate::arch::{self, HfArch, eagle3};
use crate::error::{Error, Names};
use crate::hf_config::HfConfig;

/// Class names of the checkpoints that can be converted.
pub fn supported_classes() -> impl Iterator<Item = &'static str> {
    let converted = table::all().filter(|arch| arch::of(arch).is_some());
    converted.flat_map(|arch| {
        // Several architectures may share a class.
        let is_first = |class: &&str| {
            let first = table::by_hf_class(class);
            first.is_some_and(|first| first.name == arch.name)
        };
        arch.hf_classes.iter().copied().filter(is_first)
    })
}

/// Returns the architecture of a checkpoint: its tensors and its conversion.
pub(crate) fn find_arch(config: &HfConfig) -> Result<(&'static ArchSpec, &'static HfArch), Error> {
    let found = config.class()?;
    for class in table::all().filter(|arch| arch.hf_classes.contains(&found.as_str())) {
        let arch = eagle3::arch_of(config, class)?;
        if let Some(hf_arch) = arch::of(arch).filter(|hf_arch| (hf_arch.matches)(config)) {
            return Ok((arch, hf_arch));
        }
    }
    let path = config.path.clone();
    let supported: Names = supported_classes().collect();
    if RELEASED.contains(&found.as_str()) || table::by_hf_class(&found).is_some() {
        return Err(Error::UnsupportedArch {
            path,
            found,
            supported,
        });
    }
    let nearest = supported_classes()
        .map(|class| (distance(&found, class), class))
        .min()
        .filter(|&(distance, _)| distance <= MAX_TYPO);
    Err(match nearest {
        Some((_, nearest)) => Error::MisspeltArch {
            path,
            found,
            nearest,
        },
        None => Error::UnknownArch {
            path,
            found,
            supported,
        },
    })
}

/// Maximum edit distance at which an unknown name counts as a misspelling.
const MAX_TYPO: usize = 3;

/// Returns the Levenshtein distance of two texts.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Classes of released models that are not supported.
const RELEASED: &[&str] = &[
    "AfmoeForCausalLM",
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "BaichuanForCausalLM",
    "BailingMoeV2ForCausalLM",
    "BertModel",
    "BitnetForCausalLM",
    "BloomForCausalLM",
    "ChatGLMModel",
    "Cohere2ForCausalLM",
    "CohereForCausalLM",
    "DeciLMForCausalLM",
    "DeepseekForCausalLM",
    "DeepseekV32ForCausalLM",
    "Ernie4_5ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "Exaone4ForCausalLM",
    "ExaoneForCausalLM",
    "FalconForCausalLM",
    "FalconH1ForCausalLM",
    "GPT2LMHeadModel",
    "GPTBigCodeForCausalLM",
    "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3nForConditionalGeneration",
    "GemmaForCausalLM",
    "Glm4ForCausalLM",
    "GraniteForCausalLM",
    "GraniteMoeForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "Grok1ForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "InternLM2ForCausalLM",
    "InternLM3ForCausalLM",
    "JambaForCausalLM",
    "KimiLinearForCausalLM",
    "LLaDAModelLM",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "Llama4ForConditionalGeneration",
    "MPTForCausalLM",
    "Mamba2ForCausalLM",
    "MambaForCausalLM",
    "MiniCPM3ForCausalLM",
    "MiniCPMForCausalLM",
    "MiniMaxM2ForCausalLM",
    "Mistral3ForConditionalGeneration",
    "NemotronForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "OlmoForCausalLM",
    "OlmoeForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "PhiMoEForCausalLM",
    "PlamoForCausalLM",
    "QWenLMHeadModel",
    "Qwen2MoeForCausalLM",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "SeedOssForCausalLM",
    "SmolLM3ForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
    "T5ForConditionalGeneration",
    "XverseForCausalLM",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("Qwen3ForCausaLM", "Qwen3ForCausalLM", 1),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn a_supported_class_is_not_listed_as_unsupported() {
        let listed: Vec<_> = supported_classes()
            .filter(|class| RELEASED.contains(class))
            .collect();
        assert!(listed.is_empty(), "{listed:?}");
    }
}
