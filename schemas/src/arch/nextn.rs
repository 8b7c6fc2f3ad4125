//! MTP (NextN) heads: the tensors that only heads have, and the complete list for each architecture
//! that models run. [`heads`](super::heads) is the table of all heads.
//!
//! [`head_tensors`] needs no hyperparameters: shapes are compared with those of the trunk's layers.

use super::keys;
use super::shared_tensors::{N_EMBD, N_VOCAB, N_VOCAB_DRAFT};
use super::spec::{ArchSpec, Dim, MtpSpec, Need, Numbering, Scope, TensorSpec, Transform};

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
/// Norm before the output matrix, under the name that MiMo's heads have.
pub const LAYER_OUTPUT_NORM: &str = "layer_output_norm.weight";
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

pub(super) const fn head(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorSpec {
    TensorSpec::new(Scope::Mtp, gguf, hf, shape)
}

/// Heads of Qwen3-Next and Qwen3.5, which the checkpoint names separately from the trunk's layers.
pub(super) const SEPARATE: MtpSpec = MtpSpec {
    tensors: QWEN,
    ..MtpSpec::PLAIN
};

/// Heads of GLM and DeepSeek, which the checkpoint names as layers after the trunk.
pub(super) const AFTER_TRUNK: MtpSpec = MtpSpec {
    hf_layer: "model.layers.{}.",
    numbering: Numbering::Blocks,
    tensors: LAYER,
    ..MtpSpec::PLAIN
};

/// Tensors in addition to those of a layer.
pub(super) const LAYER: &[TensorSpec] = &[
    head(EH_PROJ, "eh_proj.weight", &[EH_PROJ_COLUMNS, N_EMBD]),
    head(ENORM, "enorm.weight", &[N_EMBD]),
    head(HNORM, "hnorm.weight", &[N_EMBD]),
    head(SHARED_HEAD_NORM, "shared_head.norm.weight", &[N_EMBD]).optional(),
    head(EMBED_TOKENS, "embed_tokens.weight", &[N_EMBD, N_VOCAB]).optional(),
    head(
        SHARED_HEAD_HEAD,
        "shared_head.head.weight",
        &[N_EMBD, N_VOCAB_DRAFT],
    )
    .optional(),
    head(D2T, "", &[N_VOCAB_DRAFT]).optional(),
];

/// Tensors in addition to those of a layer; norm weights are stored as `w - 1`. Readers use the
/// trunk's tensor if an optional one is absent.
const QWEN: &[TensorSpec] = &[
    head(EH_PROJ, "mtp.fc.weight", &[EH_PROJ_COLUMNS, N_EMBD]),
    head(ENORM, "mtp.pre_fc_norm_embedding.weight", &[N_EMBD]).with(ADD_ONE),
    head(HNORM, "mtp.pre_fc_norm_hidden.weight", &[N_EMBD]).with(ADD_ONE),
    head(SHARED_HEAD_NORM, "mtp.norm.weight", &[N_EMBD])
        .with(ADD_ONE)
        .optional(),
    head(EMBED_TOKENS, "mtp.embed_tokens.weight", &[N_EMBD, N_VOCAB]).optional(),
    head(
        SHARED_HEAD_HEAD,
        "mtp.lm_head.weight",
        &[N_EMBD, N_VOCAB_DRAFT],
    )
    .optional(),
    head(D2T, "", &[N_VOCAB_DRAFT]).optional(),
];

/// A tensor of a head's block.
#[derive(Clone, Copy, Debug)]
pub struct HeadTensor {
    /// Name after `blk.N.`.
    pub name: &'static str,
    /// Required or optional.
    pub need: Need,
    /// Its shape.
    pub shape: HeadShape,
    /// Name of a tensor that some heads have instead.
    pub replaced_by: Option<&'static str>,
}

impl HeadTensor {
    pub(super) const fn new(name: &'static str, need: Need, shape: HeadShape) -> HeadTensor {
        HeadTensor {
            name,
            need,
            shape,
            replaced_by: None,
        }
    }

    /// Checks whether a head lacks this tensor although it needs it. `has` checks whether the head has a
    /// tensor of this name after `blk.N.`.
    pub fn is_missing(&self, has: impl Fn(&str) -> bool) -> bool {
        let mut names = std::iter::once(self.name).chain(self.replaced_by);
        self.need == Need::Required && !names.any(has)
    }

    /// Names a tensor that some heads have instead.
    pub(super) const fn or(self, name: &'static str) -> HeadTensor {
        HeadTensor {
            replaced_by: Some(name),
            ..self
        }
    }
}

/// Shape of a head's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadShape {
    /// Shape of the same tensor in one of the trunk's layers.
    Trunk,
    /// `{n_embd}`.
    Width,
    /// `{2 * n_embd, n_embd}`.
    Joined,
    /// `{n_embd, n_vocab}`; in a trimmed head `{n_embd, n_vocab_draft}`.
    Vocab,
    /// `{n_embd}` for each stream of hyper-connections, as one or two dimensions.
    Streams,
    /// Shape of a tensor outside of blocks.
    Model(&'static str),
}

/// Returns all tensors that a head of this architecture may have: those of a layer, then those that
/// only heads have.
pub fn head_tensors(arch: &ArchSpec) -> impl Iterator<Item = HeadTensor> + use<> {
    let layer = arch.head_layer();
    let layer = layer.map(|spec| HeadTensor::new(spec.gguf, spec.need, HeadShape::Trunk));
    let own = arch.mtp.as_ref().map_or(&[][..], |mtp| mtp.tensors);
    let own = own.iter().filter(|spec| spec.gguf != D2T).map(|spec| {
        let shape = match spec.gguf {
            EH_PROJ => HeadShape::Joined,
            EMBED_TOKENS | SHARED_HEAD_HEAD => HeadShape::Vocab,
            _ => HeadShape::Width,
        };
        HeadTensor::new(spec.gguf, spec.need, shape)
    });
    layer.chain(own)
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
