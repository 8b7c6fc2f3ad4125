//! One table per architecture: its tensors under their GGUF and HF names, their shapes, and
//! transforms of values. `convert` maps names by it, `graft` recognizes heads by it, the runner
//! loads and checks models by it. docs/adding.md explains how to add an architecture.

mod assistant;
mod attention_heads;
mod deepseek2;
mod deepseek4;
mod dflash;
mod eagle3;
mod features;
mod gemma3;
mod gemma4;
mod glm4moe;
mod gpt_oss;
pub mod heads;
mod hparams;
pub mod keys;
mod llama;
mod mimo2;
mod mla;
pub mod mtp_layout;
mod nemotron_h;
pub mod nextn;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3next;
pub mod reduced_vocab;
mod rope;
mod shared_tensors;
mod spec;
mod step35;
mod window;

pub use assistant::Assistant;
pub use deepseek4::{Compressed, TOKEN_EXPERTS};
pub use dflash::{CONFIDENCE, CONFIDENCE_BIAS, MARKOV_W1, MARKOV_W2};
pub use eagle3::{ENC_OUTPUT_NORM, FC};
pub use features::{BlockDraft, Features, has_streams};
pub use gemma4::{CENTROIDS, POST_PROJECTION, PRE_PROJECTION, TOKEN_ORDERING};
pub use hparams::{BlockHeads, Experts, Gating, Hparams, HparamsError, Ssm};
pub use mla::Mla;
pub use nextn::{EH_PROJ, NEXTN_PREFIX};
pub use rope::{ROPE_FREQS, RopeScaling, Yarn};
pub use shared_tensors::ROUTER;
pub use spec::{
    ArchSpec, BlockSpec, Dim, Expected, LayerKind, MtpSpec, Need, Numbering, Packed, RoutingSpec,
    Scope, StoredForm, TensorSpec, Transform,
};
pub use window::{Window, WindowHeads, WindowSpec};

use crate::gguf::Metadata;

/// All architectures of complete models.
pub static ARCHS: &[ArchSpec] = &[
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
];

/// All architectures of draft models that read the hidden states of a target.
pub static DRAFTS: &[ArchSpec] = &[eagle3::EAGLE3, dflash::DFLASH, gemma4::GEMMA4_ASSISTANT];

/// DSpark drafts of DeepSeek V4, which are converted, but not run. Their files have the architecture `dflash`, so no list has them.
pub static DEEPSEEK4_DSPARK: &ArchSpec = &deepseek4::DSPARK;

/// Returns all architectures: of complete models, then of drafts.
pub fn all() -> impl Iterator<Item = &'static ArchSpec> {
    ARCHS.iter().chain(DRAFTS)
}

/// Returns the architecture with this `general.architecture`, if its models run.
pub fn by_name(name: &str) -> Option<&'static ArchSpec> {
    all().find(|arch| arch.name == name)
}

/// Returns the architecture of a file, if its models run.
fn of_file(metadata: &Metadata) -> Result<&'static ArchSpec, HparamsError> {
    let name = metadata.need_str(keys::ARCHITECTURE)?;
    match by_name(name) {
        // A DSpark draft of DeepSeek V4.
        Some(arch) if arch.is_draft() && has_streams(metadata, name) => {
            let found = format!("{name} with hyper-connections");
            Err(HparamsError::OnlyConverted { found })
        }
        Some(arch) => Ok(arch),
        None => {
            let found = name.to_owned();
            Err(HparamsError::UnknownArch { found })
        }
    }
}

/// Returns the architecture that an HF class name is converted to.
pub fn by_hf_class(class: &str) -> Option<&'static ArchSpec> {
    all().find(|arch| arch.hf_classes.contains(&class))
}

/// Returns the names of all architectures that run, for messages.
pub fn names() -> String {
    all().map(|arch| arch.name).collect::<Vec<_>>().join(", ")
}
