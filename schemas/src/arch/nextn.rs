//! MTP (NextN) heads: the tensors that only heads have, and the complete list for each
//! architecture.
//!
//! [`HEADS`] uses tensor names only, and takes shapes from the trunk's layers. So heads can be
//! split and grafted for architectures that have no table.

use super::keys;
use super::rows::{N_EMBD, N_VOCAB, N_VOCAB_DRAFT};
use super::spec::{Dim, MtpSpec, Need, Numbering, Scope, TensorSpec, Transform};

/// Prefix of these tensors after `blk.N.`.
pub const NEXTN_PREFIX: &str = "nextn.";
/// Projection of the concatenated embedding and hidden state; every head has it.
pub const EH_PROJ: &str = "nextn.eh_proj.weight";

/// Norm of the embedding.
pub const ENORM: &str = "nextn.enorm.weight";
/// Norm of the hidden state.
pub const HNORM: &str = "nextn.hnorm.weight";
/// Norm before the output matrix.
pub const SHARED_HEAD_NORM: &str = "nextn.shared_head_norm.weight";
/// The head's own token embedding.
pub const EMBED_TOKENS: &str = "nextn.embed_tokens.weight";
/// The head's own output matrix.
pub const SHARED_HEAD_HEAD: &str = "nextn.shared_head_head.weight";
/// In the layout [`TRIMMED_VOCAB`](super::keys::TRIMMED_VOCAB): the target's token id of each row
/// of the head's own output, as I64.
pub const D2T: &str = "nextn.d2t";

const ADD_ONE: &[Transform] = &[Transform::AddOne];
/// Columns for the embedding, then as many for the hidden state.
const EH_PROJ_COLUMNS: Dim = |h| 2 * h.n_embd;

const fn row(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorSpec {
    TensorSpec::new(Scope::Mtp, gguf, hf, shape)
}

/// Heads of Qwen3-Next and Qwen3.5, which the checkpoint names separately from the trunk's layers.
pub(super) const APART: Option<MtpSpec> = Some(MtpSpec {
    hf_layer: "mtp.layers.{}.",
    numbering: Numbering::Own,
    tensors: QWEN,
});

/// Heads of GLM and DeepSeek, which the checkpoint names as layers after the trunk.
pub(super) const BEHIND: Option<MtpSpec> = Some(MtpSpec {
    hf_layer: "model.layers.{}.",
    numbering: Numbering::Blocks,
    tensors: LAYER,
});

/// Tensors in addition to those of a layer.
const LAYER: &[TensorSpec] = &[
    row(EH_PROJ, "eh_proj.weight", &[EH_PROJ_COLUMNS, N_EMBD]),
    row(ENORM, "enorm.weight", &[N_EMBD]),
    row(HNORM, "hnorm.weight", &[N_EMBD]),
    row(SHARED_HEAD_NORM, "shared_head.norm.weight", &[N_EMBD]).optional(),
    row(EMBED_TOKENS, "embed_tokens.weight", &[N_EMBD, N_VOCAB]).optional(),
    row(
        SHARED_HEAD_HEAD,
        "shared_head.head.weight",
        &[N_EMBD, N_VOCAB_DRAFT],
    )
    .optional(),
    row(D2T, "", &[N_VOCAB_DRAFT]).optional(),
];

/// Tensors in addition to those of a layer; norm weights are stored as `w - 1`. Readers use the
/// trunk's tensor if an optional one is absent.
const QWEN: &[TensorSpec] = &[
    row(EH_PROJ, "mtp.fc.weight", &[EH_PROJ_COLUMNS, N_EMBD]),
    row(ENORM, "mtp.pre_fc_norm_embedding.weight", &[N_EMBD]).with(ADD_ONE),
    row(HNORM, "mtp.pre_fc_norm_hidden.weight", &[N_EMBD]).with(ADD_ONE),
    row(SHARED_HEAD_NORM, "mtp.norm.weight", &[N_EMBD])
        .with(ADD_ONE)
        .optional(),
    row(EMBED_TOKENS, "mtp.embed_tokens.weight", &[N_EMBD, N_VOCAB]).optional(),
    row(
        SHARED_HEAD_HEAD,
        "mtp.lm_head.weight",
        &[N_EMBD, N_VOCAB_DRAFT],
    )
    .optional(),
    row(D2T, "", &[N_VOCAB_DRAFT]).optional(),
];

/// Layout of an architecture's MTP block.
#[derive(Debug)]
pub struct HeadLayout {
    /// `general.architecture`.
    pub arch: &'static str,
    /// The block's tensors that trunk layers with attention have, too.
    pub layer: &'static [HeadRow],
}

/// A tensor of a head's block.
#[derive(Clone, Copy, Debug)]
pub struct HeadRow {
    /// Name after `blk.N.`.
    pub name: &'static str,
    /// Required or optional.
    pub need: Need,
    /// Its shape.
    pub shape: HeadShape,
}

/// Shape of a head's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadShape {
    /// Shape of the same tensor in a trunk layer.
    Trunk,
    /// `{n_embd}`.
    Width,
    /// `{2 * n_embd, n_embd}`.
    Joined,
    /// `{n_embd, n_vocab}`; in a trimmed head `{n_embd, n_vocab_draft}`.
    Vocab,
}

impl HeadLayout {
    /// Returns all tensors that a head of this architecture may have.
    pub fn rows(&self) -> impl Iterator<Item = &'static HeadRow> {
        self.layer.iter().chain(OWN_ROWS)
    }
}

/// Returns the head layout of an architecture; `None` if no heads of it are known.
pub fn head_layout(arch: &str) -> Option<&'static HeadLayout> {
    HEADS.iter().find(|layout| layout.arch == arch)
}

const fn trunk(name: &'static str) -> HeadRow {
    HeadRow {
        name,
        need: Need::Required,
        shape: HeadShape::Trunk,
    }
}

const fn maybe(name: &'static str) -> HeadRow {
    HeadRow {
        need: Need::Optional,
        ..trunk(name)
    }
}

const fn own(name: &'static str, need: Need, shape: HeadShape) -> HeadRow {
    HeadRow { name, need, shape }
}

/// Tensors of all heads in addition to those of a layer.
const OWN_ROWS: &[HeadRow] = &[
    own(EH_PROJ, Need::Required, HeadShape::Joined),
    own(ENORM, Need::Required, HeadShape::Width),
    own(HNORM, Need::Required, HeadShape::Width),
    own(SHARED_HEAD_NORM, Need::Optional, HeadShape::Width),
    own(EMBED_TOKENS, Need::Optional, HeadShape::Vocab),
    own(SHARED_HEAD_HEAD, Need::Optional, HeadShape::Vocab),
];

const QWEN_MOE_LAYER: &[HeadRow] = &[
    trunk("attn_norm.weight"),
    trunk("attn_q.weight"),
    trunk("attn_k.weight"),
    trunk("attn_v.weight"),
    trunk("attn_output.weight"),
    trunk("attn_q_norm.weight"),
    trunk("attn_k_norm.weight"),
    trunk("post_attention_norm.weight"),
    trunk("ffn_gate_inp.weight"),
    trunk("ffn_gate_exps.weight"),
    trunk("ffn_up_exps.weight"),
    trunk("ffn_down_exps.weight"),
    trunk("ffn_gate_inp_shexp.weight"),
    trunk("ffn_gate_shexp.weight"),
    trunk("ffn_up_shexp.weight"),
    trunk("ffn_down_shexp.weight"),
];

/// All known head layouts, with the tensors that llama.cpp's loader requires.
pub static HEADS: &[HeadLayout] = &[
    HeadLayout {
        arch: "qwen35",
        layer: &[
            trunk("attn_norm.weight"),
            trunk("attn_q.weight"),
            trunk("attn_k.weight"),
            trunk("attn_v.weight"),
            trunk("attn_output.weight"),
            trunk("attn_q_norm.weight"),
            trunk("attn_k_norm.weight"),
            trunk("post_attention_norm.weight"),
            trunk("ffn_gate.weight"),
            trunk("ffn_up.weight"),
            trunk("ffn_down.weight"),
        ],
    },
    HeadLayout {
        arch: "qwen35moe",
        layer: QWEN_MOE_LAYER,
    },
    HeadLayout {
        arch: "qwen3next",
        layer: QWEN_MOE_LAYER,
    },
    HeadLayout {
        arch: "glm4moe",
        layer: &[
            trunk("attn_norm.weight"),
            trunk("attn_q.weight"),
            trunk("attn_k.weight"),
            trunk("attn_v.weight"),
            maybe("attn_q.bias"),
            maybe("attn_k.bias"),
            maybe("attn_v.bias"),
            maybe("attn_q_norm.weight"),
            maybe("attn_k_norm.weight"),
            trunk("attn_output.weight"),
            trunk("post_attention_norm.weight"),
            trunk("ffn_gate_inp.weight"),
            trunk("exp_probs_b.bias"),
            trunk("ffn_gate_exps.weight"),
            trunk("ffn_up_exps.weight"),
            trunk("ffn_down_exps.weight"),
            trunk("ffn_gate_shexp.weight"),
            trunk("ffn_up_shexp.weight"),
            trunk("ffn_down_shexp.weight"),
        ],
    },
    HeadLayout {
        arch: "deepseek2",
        layer: &[
            trunk("attn_norm.weight"),
            trunk("attn_q_a.weight"),
            trunk("attn_q_a_norm.weight"),
            trunk("attn_q_b.weight"),
            trunk("attn_kv_a_mqa.weight"),
            trunk("attn_kv_a_norm.weight"),
            trunk("attn_k_b.weight"),
            trunk("attn_v_b.weight"),
            trunk("attn_output.weight"),
            trunk("ffn_norm.weight"),
            trunk("ffn_gate_inp.weight"),
            maybe("exp_probs_b.bias"),
            trunk("ffn_gate_exps.weight"),
            trunk("ffn_up_exps.weight"),
            trunk("ffn_down_exps.weight"),
            trunk("ffn_gate_shexp.weight"),
            trunk("ffn_up_shexp.weight"),
            trunk("ffn_down_shexp.weight"),
        ],
    },
];

/// Returns the names of all architectures with heads, for messages.
pub fn names() -> String {
    let names: Vec<&str> = HEADS.iter().map(|layout| layout.arch).collect();
    names.join(", ")
}

/// Entry of a per-layer array for an MTP layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerLayer {
    /// False: the array marks a kind of layer that MTP layers are not.
    False,
    /// A number that MTP layers also have; it is taken from the donor.
    Number,
}

/// Keys after `{arch}.` that have one entry per block if they are arrays.
pub const PER_LAYER_KEYS: &[(&str, PerLayer)] = &[
    (keys::RECURRENT_LAYERS, PerLayer::False),
    (keys::SLIDING_WINDOW_PATTERN, PerLayer::False),
    (keys::FEED_FORWARD_LENGTH, PerLayer::Number),
    (keys::HEAD_COUNT, PerLayer::Number),
    (keys::HEAD_COUNT_KV, PerLayer::Number),
    (keys::EXPERT_FEED_FORWARD_LENGTH, PerLayer::Number),
    (keys::EXPERT_USED_COUNT, PerLayer::Number),
];
