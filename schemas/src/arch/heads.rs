//! The table of MTP heads: one entry for each architecture whose heads can be split, grafted,
//! replaced, requantized and repaired.
//!
//! An architecture that models run has its heads in its own description; the others are listed here
//! by the names of their tensors. Shapes are compared with those of the trunk's layers, so a file of
//! an architecture without forward pass and hyperparameters can be changed all the same.

use super::nextn::{
    EH_PROJ, EMBED_TOKENS, ENORM, HNORM, HeadShape, HeadTensor, LAYER_OUTPUT_NORM,
    SHARED_HEAD_HEAD, SHARED_HEAD_NORM, head_tensors,
};
use super::shared_tensors::ROUTER;
use super::spec::{ArchSpec, Need};
use super::{all, keys};

/// The MTP heads of one architecture.
#[derive(Clone, Copy, Debug)]
pub struct HeadSpec {
    /// `general.architecture`, and the prefix of the architecture's keys.
    pub arch: &'static str,
    /// Programs that draft with the heads.
    pub drafting: Drafting,
    /// Maximum number of heads that readers accept; `None` for any number.
    pub max_heads: Option<u32>,
    /// True if blocks differ, so that a head's entry of a per-layer array cannot be derived from
    /// those of the trunk.
    pub uneven: bool,
    /// Keys after `{arch}.` whose arrays have one entry per trunk layer and none for heads.
    pub trunk_arrays: &'static [&'static str],
    /// Tensors outside of blocks that a sidecar has for its head, and that an inline head shares with
    /// the trunk.
    pub mixers: &'static [&'static str],
    tensors: Tensors,
}

/// Programs that draft with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafting {
    /// specconv and llama.cpp.
    Here,
    /// Only llama.cpp.
    LlamaCpp,
    /// None: llama.cpp stores the head and does not run it.
    Nothing,
}

/// Source of the list of a head's tensors.
#[derive(Clone, Copy, Debug)]
enum Tensors {
    /// The description of an architecture that models run.
    Of(&'static ArchSpec),
    /// Lists of this file.
    Listed(&'static [&'static [HeadTensor]]),
}

impl HeadSpec {
    /// Defaults of the entries of this file.
    const LISTED: HeadSpec = HeadSpec {
        arch: "",
        drafting: Drafting::LlamaCpp,
        max_heads: Some(1),
        uneven: false,
        trunk_arrays: &[],
        mixers: &[],
        tensors: Tensors::Listed(&[]),
    };

    /// Returns all tensors that a head may have.
    pub fn tensors(self) -> Vec<HeadTensor> {
        match self.tensors {
            Tensors::Of(arch) => head_tensors(arch).collect(),
            Tensors::Listed(lists) => lists.iter().copied().flatten().copied().collect(),
        }
    }
}

/// Returns the heads of the architecture with this name.
pub fn find(arch: &str) -> Option<HeadSpec> {
    heads().find(|head| head.arch == arch)
}

/// Returns all entries: first those of architectures that models run.
pub fn heads() -> impl Iterator<Item = HeadSpec> {
    let run = all().filter_map(|arch| {
        let mixers = arch.mtp.as_ref()?.own_ends;
        Some(HeadSpec {
            arch: arch.name,
            drafting: Drafting::Here,
            // A file has room for the mixers of one head.
            max_heads: (!mixers.is_empty()).then_some(1),
            uneven: arch.blocks.head_counts,
            mixers,
            tensors: Tensors::Of(arch),
            ..HeadSpec::LISTED
        })
    });
    run.chain(LISTED.iter().copied())
}

/// Returns the names of all architectures with heads, for messages.
pub fn names() -> String {
    heads().map(|head| head.arch).collect::<Vec<_>>().join(", ")
}

/// Returns why files of an architecture have no head although its checkpoints have one.
pub fn left_out(arch: &str) -> Option<&'static str> {
    let entry = LEFT_OUT.iter().find(|(name, _)| *name == arch);
    entry.map(|&(_, reason)| reason)
}

/// Architectures whose files never have a head, with the reason.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("ernie4_5-moe", DROPPED),
    ("hy_v4", DROPPED),
    ("minimax-m2", DROPPED),
    ("minimax-m3", DROPPED),
    (
        "nemotron_h",
        "only the models with experts, nemotron_h_moe, have a head",
    ),
];
const DROPPED: &str = "converters leave the head of its checkpoints out";

/// A tensor with the shape of the trunk's.
const fn layer(name: &'static str) -> HeadTensor {
    HeadTensor::new(name, Need::Required, HeadShape::Trunk)
}

/// A tensor with the shape of the trunk's that some heads lack.
const fn optional(name: &'static str) -> HeadTensor {
    HeadTensor::new(name, Need::Optional, HeadShape::Trunk)
}

const fn norm(name: &'static str) -> HeadTensor {
    HeadTensor::new(name, Need::Required, HeadShape::Width)
}

/// Fusion of the embedding and the hidden state.
const FUSION: &[HeadTensor] = &[
    HeadTensor::new(EH_PROJ, Need::Required, HeadShape::Joined),
    norm(ENORM),
    norm(HNORM),
];
/// Tensors that a head may have itself or share with the trunk.
const OWN_OR_SHARED: &[HeadTensor] = &[
    HeadTensor::new(SHARED_HEAD_NORM, Need::Optional, HeadShape::Width),
    HeadTensor::new(EMBED_TOKENS, Need::Optional, HeadShape::Vocab),
    HeadTensor::new(SHARED_HEAD_HEAD, Need::Optional, HeadShape::Vocab),
];

const FUSED_QKV: &str = "attn_qkv.weight";
/// Attention with queries, keys and values in three tensors or in one.
const ATTENTION: &[HeadTensor] = &[
    layer("attn_norm.weight"),
    layer("attn_q.weight").or(FUSED_QKV),
    layer("attn_k.weight").or(FUSED_QKV),
    layer("attn_v.weight").or(FUSED_QKV),
    optional(FUSED_QKV),
    layer("attn_output.weight"),
];
const QK_NORM: &[HeadTensor] = &[layer("attn_q_norm.weight"), layer("attn_k_norm.weight")];
const FFN_NORM: &[HeadTensor] = &[layer("ffn_norm.weight")];

/// Multi-head latent attention without the query projection.
const LATENT: &[HeadTensor] = &[
    layer("attn_norm.weight"),
    layer("attn_kv_a_mqa.weight"),
    layer("attn_kv_a_norm.weight"),
    layer("attn_k_b.weight"),
    layer("attn_v_b.weight"),
    layer("attn_output.weight"),
];
const LOW_RANK_QUERY: &[HeadTensor] = &[
    layer("attn_q_a.weight"),
    layer("attn_q_a_norm.weight"),
    layer("attn_q_b.weight"),
];
const DIRECT_QUERY: &str = "attn_q.weight";
/// Queries with a projection of low rank, or a direct one.
const EITHER_QUERY: &[HeadTensor] = &[
    layer("attn_q_a.weight").or(DIRECT_QUERY),
    layer("attn_q_a_norm.weight").or(DIRECT_QUERY),
    layer("attn_q_b.weight").or(DIRECT_QUERY),
    optional(DIRECT_QUERY),
];
const INDEXER: &[HeadTensor] = &[
    layer("indexer.k_norm.weight"),
    layer("indexer.k_norm.bias"),
    layer("indexer.proj.weight"),
    layer("indexer.attn_k.weight"),
    layer("indexer.attn_q_b.weight"),
];
const OPTIONAL_INDEXER: &[HeadTensor] = &[
    optional("indexer.k_norm.weight"),
    optional("indexer.k_norm.bias"),
    optional("indexer.proj.weight"),
    optional("indexer.attn_k.weight"),
    optional("indexer.attn_q_b.weight"),
];

const DENSE: &[HeadTensor] = &[
    layer("ffn_gate.weight"),
    layer("ffn_up.weight"),
    layer("ffn_down.weight"),
];
const FUSED_EXPERTS: &str = "ffn_gate_up_exps.weight";
/// Experts with the gate and the up projection in two tensors or in one.
const EXPERTS: &[HeadTensor] = &[
    layer(ROUTER),
    layer("ffn_gate_exps.weight").or(FUSED_EXPERTS),
    layer("ffn_up_exps.weight").or(FUSED_EXPERTS),
    optional(FUSED_EXPERTS),
    layer("ffn_down_exps.weight"),
];
const CHOICE_BIAS: &[HeadTensor] = &[layer("exp_probs_b.bias")];
const OPTIONAL_CHOICE_BIAS: &[HeadTensor] = &[optional("exp_probs_b.bias")];
const SHARED_EXPERT: &[HeadTensor] = &[
    layer("ffn_gate_shexp.weight"),
    layer("ffn_up_shexp.weight"),
    layer("ffn_down_shexp.weight"),
];
const OPTIONAL_SHARED_EXPERT: &[HeadTensor] = &[
    optional("ffn_gate_shexp.weight"),
    optional("ffn_up_shexp.weight"),
    optional("ffn_down_shexp.weight"),
];

// Hyper-connections of low rank.
const LOW_RANK_CONNECTIONS: &[HeadTensor] = &[
    layer("hc_attn_norm.weight"),
    layer("hc_attn_down.weight"),
    layer("hc_attn_up.weight"),
    layer("hc_attn_inject.weight"),
    layer("hc_ffn_norm.weight"),
    layer("hc_ffn_down.weight"),
    layer("hc_ffn_up.weight"),
    layer("hc_ffn_inject.weight"),
];

/// Architectures whose heads can be changed, but not run.
static LISTED: &[HeadSpec] = &[
    HeadSpec {
        arch: "deepseek32",
        tensors: Tensors::Listed(&[
            FUSION,
            OWN_OR_SHARED,
            LATENT,
            LOW_RANK_QUERY,
            INDEXER,
            FFN_NORM,
            EXPERTS,
            OPTIONAL_CHOICE_BIAS,
            SHARED_EXPERT,
        ]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "glm-dsa",
        trunk_arrays: &[keys::INDEXER_TYPES],
        tensors: Tensors::Listed(&[
            FUSION,
            OWN_OR_SHARED,
            LATENT,
            LOW_RANK_QUERY,
            OPTIONAL_INDEXER,
            FFN_NORM,
            EXPERTS,
            OPTIONAL_CHOICE_BIAS,
            SHARED_EXPERT,
        ]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "qwen4exp",
        tensors: Tensors::Listed(&[
            // The hidden state has several streams, and the norm has weights for each.
            &[
                FUSION[0],
                FUSION[1],
                HeadTensor::new(HNORM, Need::Required, HeadShape::Streams),
                HeadTensor::new(
                    "nextn.hc_head_norm.weight",
                    Need::Required,
                    HeadShape::Streams,
                ),
                HeadTensor::new(
                    "nextn.hc_head_down.weight",
                    Need::Required,
                    HeadShape::Model("output_hc_down.weight"),
                ),
                HeadTensor::new(
                    "nextn.hc_head_up.weight",
                    Need::Required,
                    HeadShape::Model("output_hc_up.weight"),
                ),
            ],
            LOW_RANK_CONNECTIONS,
            // Hyper-connections take the place of layer norms.
            &[
                ATTENTION[1],
                ATTENTION[2],
                ATTENTION[3],
                ATTENTION[4],
                ATTENTION[5],
                layer("indexer.q_proj.weight"),
                layer("indexer.k_proj.weight"),
                layer("indexer.q_norm.weight"),
                layer("indexer.k_norm.weight"),
                layer("ffn_gate_inp_shexp.weight"),
            ],
            QK_NORM,
            EXPERTS,
            SHARED_EXPERT,
        ]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "glm5-next",
        drafting: Drafting::Nothing,
        max_heads: None,
        uneven: true,
        trunk_arrays: &[keys::INDEXER_TYPES],
        tensors: Tensors::Listed(&[
            FUSION,
            OWN_OR_SHARED,
            LATENT,
            LOW_RANK_QUERY,
            INDEXER,
            &[
                layer("indexer_compressor_gate.weight"),
                layer("indexer_compressor_ape.weight"),
            ],
            FFN_NORM,
            EXPERTS,
            CHOICE_BIAS,
            SHARED_EXPERT,
        ]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "hy_v3",
        max_heads: None,
        tensors: Tensors::Listed(&[
            FUSION,
            OWN_OR_SHARED,
            ATTENTION,
            QK_NORM,
            FFN_NORM,
            // Experts, or a dense block as in the first layers.
            &[
                layer(ROUTER).or("ffn_gate.weight"),
                optional("ffn_gate_exps.weight"),
                optional("ffn_up_exps.weight"),
                optional(FUSED_EXPERTS),
                optional("ffn_down_exps.weight"),
                optional("exp_probs_b"),
                optional("exp_probs_b.bias"),
                optional("ffn_gate.weight"),
                optional("ffn_up.weight"),
                optional("ffn_down.weight"),
            ],
            OPTIONAL_SHARED_EXPERT,
        ]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "cohere2moe",
        trunk_arrays: &[keys::SLIDING_WINDOW_PATTERN],
        // Attention and experts read the same norm.
        tensors: Tensors::Listed(&[
            FUSION,
            OWN_OR_SHARED,
            ATTENTION,
            EXPERTS,
            OPTIONAL_SHARED_EXPERT,
        ]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "bailingmoe3",
        uneven: true,
        tensors: Tensors::Listed(&[
            FUSION,
            &[norm(LAYER_OUTPUT_NORM), layer("attn_gate.weight")],
            LATENT,
            EITHER_QUERY,
            FFN_NORM,
            EXPERTS,
            CHOICE_BIAS,
            SHARED_EXPERT,
        ]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "exaone-moe",
        drafting: Drafting::Nothing,
        max_heads: None,
        trunk_arrays: &[keys::SLIDING_WINDOW_PATTERN],
        tensors: Tensors::Listed(&[FUSION, OWN_OR_SHARED, ATTENTION, QK_NORM, FFN_NORM, DENSE]),
        ..HeadSpec::LISTED
    },
    HeadSpec {
        arch: "dots3note",
        drafting: Drafting::Nothing,
        max_heads: None,
        uneven: true,
        trunk_arrays: &[keys::INDEXER_TYPES],
        tensors: Tensors::Listed(&[
            FUSION,
            OWN_OR_SHARED,
            LATENT,
            LOW_RANK_QUERY,
            &[layer("attn_k_norm.weight"), layer("attn_gate.weight")],
            FFN_NORM,
            DENSE,
        ]),
        ..HeadSpec::LISTED
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// An architecture is listed once, and not if its own description has its heads.
    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = heads().map(|head| head.arch).collect();
        names.extend(LEFT_OUT.iter().map(|(name, _)| name));
        let n_names = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n_names);
    }

    /// No head has a tensor twice, and every alternative is one of its tensors.
    #[test]
    fn tensors_of_a_head_are_unique() {
        for head in heads() {
            let tensors = head.tensors();
            for (i, tensor) in tensors.iter().enumerate() {
                let name = tensor.name;
                let again = tensors[..i].iter().any(|other| other.name == name);
                assert!(!again, "{}: {name} twice", head.arch);
                let known = |name: &str| tensors.iter().any(|other| other.name == name);
                assert!(
                    tensor.replaced_by.is_none_or(known),
                    "{}: {name}",
                    head.arch
                );
            }
        }
    }
}
