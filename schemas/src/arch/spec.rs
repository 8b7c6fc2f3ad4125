//! Schema of an architecture's table: its tensors with names and shapes.

use super::hparams::{Gating, Hparams};
use super::window::WindowSpec;

/// A dimension of a tensor, computed from the hyperparameters.
pub type Dim = fn(&Hparams) -> u64;

/// An architecture. All code that converts, quantizes, grafts or runs models uses this description.
#[derive(Debug)]
pub struct ArchSpec {
    /// `general.architecture`, and the prefix of the architecture's keys.
    pub name: &'static str,
    /// Class names in `architectures` of an HF `config.json`.
    pub hf_classes: &'static [&'static str],
    /// Prefix of the names of trunk layers in HF checkpoints, with `{}` for the layer's number.
    pub hf_layer: &'static str,
    /// Tensors outside of the MTP head, in groups that architectures share.
    pub tensors: &'static [&'static [TensorSpec]],
    /// The MTP head; `None` if the architecture has none.
    pub mtp: Option<MtpSpec>,
    /// The sliding window; `None` if the architecture has none.
    pub window: Option<WindowSpec>,
    /// Defaults of expert routing.
    pub routing: RoutingSpec,
    /// True if the forward pass multiplies token embeddings by the square root of their width.
    pub scaled_embeddings: bool,
    /// Width whose square root divides `q . k`.
    pub query_width: Dim,
    /// True if YaRN's limits between fast and slow pairs are rounded to whole pairs. No key states
    /// it.
    pub yarn_whole_pairs: bool,
    /// Differences between the blocks of a model.
    pub blocks: BlockSpec,
    /// True for drafts whose layers attend to the keys and values of their target.
    pub assistant: bool,
    /// True if MTP heads read the trunk's hidden state before the final norm; false if after it.
    pub hidden_before_norm: bool,
    /// True if positions of images have three coordinates (M-RoPE), each for the rotated pairs of one
    /// remainder modulo 3.
    pub interleaved_sections: bool,
}

/// Differences between the blocks of a model; with [`BlockSpec::EQUAL`], all are equal.
#[derive(Clone, Copy, Debug)]
pub struct BlockSpec {
    /// True if blocks may have different numbers of heads, or feed-forward blocks of different widths; the
    /// keys are then arrays.
    pub head_counts: bool,
    /// True if value heads may be narrower than key heads.
    pub narrow_values: bool,
    /// True if blocks without a window rotate only half of the elements that the key states.
    pub half_rotation: bool,
    /// True if blocks with a window have their own head size, and the last blocks attend to the keys and
    /// values of earlier ones.
    pub window_heads: bool,
    /// True if no key states which blocks of the trunk are dense. A block with a router has experts.
    pub dense_by_tensors: bool,
    /// True if blocks with experts have a dense feed-forward block beside them.
    pub dense_beside_experts: bool,
    /// True if a block of the trunk has only one part, a recurrence, attention or a feed-forward network, and
    /// attention has no positions. The per-block numbers of KV heads and feed-forward widths state the kind.
    pub single_part: bool,
    /// True if blocks have hyper-connections, attend to compressed positions, and choose experts by a table of
    /// tokens in the first blocks. The compression ratios of all blocks are an array.
    pub compressed: bool,
}

impl BlockSpec {
    pub(super) const EQUAL: BlockSpec = BlockSpec {
        head_counts: false,
        narrow_values: false,
        half_rotation: false,
        window_heads: false,
        dense_by_tensors: false,
        dense_beside_experts: false,
        single_part: false,
        compressed: false,
    };

    /// Checks whether a block of this kind has a feed-forward network.
    pub(super) fn has_network(&self, kind: LayerKind) -> bool {
        !self.single_part || matches!(kind, LayerKind::FeedForward | LayerKind::Mtp)
    }
}

impl ArchSpec {
    /// Defaults of most architectures, without tensors.
    pub(super) const PLAIN: ArchSpec = ArchSpec {
        name: "",
        hf_classes: &[],
        hf_layer: "model.layers.{}.",
        tensors: &[],
        mtp: None,
        window: None,
        routing: RoutingSpec {
            gating: Gating::Softmax,
            normalised: true,
        },
        scaled_embeddings: false,
        query_width: |h| h.head_dim,
        yarn_whole_pairs: true,
        blocks: BlockSpec::EQUAL,
        assistant: false,
        hidden_before_norm: false,
        interleaved_sections: false,
    };
}

/// Defaults for absent keys of expert routing.
#[derive(Clone, Copy, Debug)]
pub struct RoutingSpec {
    /// Gating function of the router.
    pub gating: Gating,
    /// True if the weights of a token's experts are normalized to sum to one.
    pub normalised: bool,
}

/// Layout of an architecture's MTP (NextN) heads.
///
/// A head is one more block after the trunk: a layer with attention, plus these tensors under
/// `blk.N.`.
#[derive(Debug)]
pub struct MtpSpec {
    /// Prefix of tensor names in HF checkpoints, with `{}` for the head's number.
    pub hf_layer: &'static str,
    /// Numbering of heads in HF checkpoints.
    pub numbering: Numbering,
    /// Tensors that only heads have. Their HF names are complete with [`Numbering::Own`], else
    /// relative to the head's layer.
    pub tensors: &'static [TensorSpec],
    /// GGUF names of tensors that trunk layers may have, but heads never do.
    pub absent: &'static [&'static str],
    /// True if the feed-forward block of heads is dense although layers of the trunk have experts.
    pub dense: bool,
    /// Prefix of the names of a head's experts in HF checkpoints, if it is not `hf_layer`.
    pub hf_experts: Option<&'static str>,
    /// True if the norm before a head's output subtracts the mean (LayerNorm).
    pub centered_norm: bool,
    /// GGUF names of tensors outside of blocks that a sidecar has for its head, in the place of the trunk's. The
    /// checkpoint stores them in the head's layer.
    pub own_ends: &'static [&'static str],
}

impl MtpSpec {
    /// Heads that the checkpoint numbers from zero, and whose own tensors it names outside of their layers.
    pub(super) const PLAIN: MtpSpec = MtpSpec {
        hf_layer: "mtp.layers.{}.",
        numbering: Numbering::Own,
        tensors: &[],
        absent: &[],
        dense: false,
        hf_experts: None,
        centered_norm: false,
        own_ends: &[],
    };
}

/// Numbering of MTP heads in HF checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// From zero; the tensors that only heads have are named outside of the head's layer, so there
    /// is only one head.
    Own,
    /// From zero; the head's layer contains all of its tensors.
    Zero,
    /// As layers after the trunk, which contain all tensors of a head.
    Blocks,
}

impl MtpSpec {
    /// Returns the prefix of HF names in the head's layer `block`, for a model with `n_layer` trunk
    /// layers.
    pub fn hf_prefix(&self, block: u32, n_layer: u32) -> String {
        let number = match self.numbering {
            Numbering::Own | Numbering::Zero => block - n_layer,
            Numbering::Blocks => block,
        };
        self.hf_layer.replace("{}", &number.to_string())
    }

    /// Returns the prefix of HF names of a head's tensors of this scope, given the prefix of its layer.
    pub fn prefix_of<'a>(&self, scope: Scope, layer: &'a str) -> &'a str {
        match (scope, self.numbering) {
            (Scope::Mtp, Numbering::Own) => "",
            (Scope::Experts, _) => self.hf_experts.unwrap_or(layer),
            _ => layer,
        }
    }
}

/// The layers that have a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Once per file.
    Model,
    /// Every layer, MTP layers included.
    Layer,
    /// Layers with softmax attention, MTP layers included.
    Attention,
    /// Layers with a recurrent state.
    Recurrent,
    /// Layers with a dense feed-forward block.
    Dense,
    /// Layers with a mixture of experts.
    Experts,
    /// MTP layers only.
    Mtp,
}

/// Presence of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Every file has it.
    Required,
    /// A file may lack it: only some models have it, or readers have a fallback.
    Optional,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct TensorSpec {
    /// GGUF name, without `blk.N.`.
    pub gguf: &'static str,
    /// HF name, without the layer's prefix; empty for a tensor that the converter computes. A name
    /// with `{}` means one tensor per expert, with the expert's number; the last dimension of the
    /// GGUF tensor stacks them.
    pub hf: &'static str,
    /// Alternative way in which some checkpoints store the tensor.
    pub packed: Option<Packed>,
    /// HF name of a tensor of the same shape whose columns follow those of `hf`; `None` for most tensors.
    pub beside: Option<&'static str>,
    /// Dimensions, the contiguous one first.
    pub shape: &'static [Dim],
    /// The layers that have the tensor.
    pub scope: Scope,
    /// Transforms that the converter applies, in order.
    pub transform: &'static [Transform],
    /// Required or optional.
    pub need: Need,
}

/// Placeholder of the expert's number in HF names.
const EXPERT: &str = "{}";

/// All experts in one tensor; other checkpoints have one tensor per expert.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    /// HF name, without the layer's prefix.
    pub hf: &'static str,
    /// Transforms that the converter applies, in order.
    pub transform: &'static [Transform],
}

/// A transform of values from checkpoint to GGUF, in terms of the checkpoint's rows and columns.
#[derive(Clone, Copy, Debug)]
pub enum Transform {
    /// `w + 1`: restores norm weights, which the checkpoint stores minus 1.
    AddOne,
    /// `-exp(w)`: the checkpoint's `A_log`.
    NegExp,
    /// Reorders the rows of each head from rotate-half to interleaved RoPE: `out[2j + t] = in[t *
    /// rows / 2 + j]`.
    RopePairs {
        /// Number of heads.
        n_head: Dim,
    },
    /// Reorders the rows of value heads, starting at row `start`, from grouped by key head to
    /// tiled: `out[r * n_k + k] = in[k * n_v / n_k + r]`.
    TileValueRows {
        /// First row of the value heads.
        start: Dim,
        /// Rows of one value head.
        width: Dim,
    },
    /// Reorders the columns of value heads in the same way.
    TileValueColumns {
        /// Columns of one value head.
        width: Dim,
    },
    /// Takes some parts of row groups. The result has the first taken part of every group, then the
    /// next part of every group.
    TakeRows {
        /// Number of groups.
        n_group: Dim,
        /// Number of rows of each part of a group.
        widths: &'static [Dim],
        /// Indices of the parts that are taken.
        parts: &'static [usize],
    },
    /// Takes every `of`-th column, or element of a vector: `out[i] = in[of * i + part]`.
    TakeColumns {
        /// Number of interleaved parts.
        of: u64,
        /// Index of the part that is taken.
        part: u64,
    },
    /// Splits a vector into rows.
    Split,
    /// Transposes each group of rows: `out[group][i][j] = in[group][j][i]`.
    Transpose {
        /// Number of groups.
        n_group: Dim,
    },
    /// Integers of the checkpoint, stored as I32.
    Indices {
        /// Upper limit of the integers, which are at least 0 and less than this.
        below: Dim,
    },
}

impl Transform {
    /// Changes the shape of a transformed tensor to its shape before the transform.
    fn undo_shape(&self, shape: &mut [u64], hparams: &Hparams) {
        match (*self, shape) {
            (Transform::TakeRows { widths, parts, .. }, [_, n_rows, ..]) => {
                let group: u64 = widths.iter().map(|width| width(hparams)).sum();
                let taken: u64 = parts.iter().map(|&part| widths[part](hparams)).sum();
                *n_rows = *n_rows / taken.max(1) * group;
            }
            (Transform::TakeColumns { of, .. }, [n_columns, ..]) => *n_columns *= of,
            (Transform::Split, [n_columns, n_rows]) => {
                (*n_columns, *n_rows) = (*n_columns * *n_rows, 1);
            }
            (Transform::Transpose { .. }, [n_columns, n_rows, ..]) => {
                std::mem::swap(n_columns, n_rows);
            }
            _ => {}
        }
    }
}

impl TensorSpec {
    /// A required tensor without transforms.
    pub const fn new(
        scope: Scope,
        gguf: &'static str,
        hf: &'static str,
        shape: &'static [Dim],
    ) -> TensorSpec {
        TensorSpec {
            gguf,
            hf,
            shape,
            scope,
            packed: None,
            beside: None,
            transform: &[],
            need: Need::Required,
        }
    }

    /// Adds an alternative way in which some checkpoints store the tensor.
    pub const fn or_packed(self, hf: &'static str, transform: &'static [Transform]) -> TensorSpec {
        TensorSpec {
            packed: Some(Packed { hf, transform }),
            ..self
        }
    }

    /// Names a tensor of the same shape whose columns follow.
    pub const fn beside(self, hf: &'static str) -> TensorSpec {
        TensorSpec {
            beside: Some(hf),
            ..self
        }
    }

    /// Marks the tensor as optional.
    pub const fn optional(self) -> TensorSpec {
        TensorSpec {
            need: Need::Optional,
            ..self
        }
    }

    /// Sets the transforms.
    pub const fn with(self, transform: &'static [Transform]) -> TensorSpec {
        TensorSpec { transform, ..self }
    }

    /// Checks whether the tensor has any elements in a model with these hyperparameters.
    pub fn exists(&self, hparams: &Hparams) -> bool {
        self.shape.iter().all(|dim| dim(hparams) > 0)
    }

    /// Returns the shape in a model with these hyperparameters.
    pub fn shape(&self, hparams: &Hparams) -> Vec<u64> {
        self.shape.iter().map(|dim| dim(hparams)).collect()
    }
}

/// A tensor of a model with known hyperparameters.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Full GGUF name.
    pub name: String,
    /// Prefix of its HF names.
    pub hf_prefix: String,
    /// Its entry in the table.
    pub spec: &'static TensorSpec,
    /// The block it belongs to; `None` for [`Scope::Model`].
    pub layer: Option<u32>,
}

/// One form in which checkpoints store a tensor.
#[derive(Clone, Debug)]
pub struct StoredForm {
    /// Full HF names: one, one per expert in the order of their numbers, or two whose columns are joined.
    pub names: Vec<String>,
    /// Dimensions of each tensor, the contiguous one first.
    pub shape: Vec<u64>,
    /// Transforms that the converter applies, in order.
    pub transform: &'static [Transform],
}

impl Expected {
    /// Returns the hyperparameters of its block, or of the whole model.
    pub fn hparams(&self, hparams: &Hparams) -> Hparams {
        match self.layer {
            Some(block) => hparams.of_block(block),
            None => hparams.clone(),
        }
    }

    /// Returns the shape in a model with these hyperparameters.
    pub fn shape(&self, hparams: &Hparams) -> Vec<u64> {
        self.spec.shape(&self.hparams(hparams))
    }

    /// Returns all forms in which checkpoints store the tensor; empty if the converter computes it.
    pub fn stored_forms(&self, hparams: &Hparams) -> Vec<StoredForm> {
        let TensorSpec { hf, transform, .. } = *self.spec;
        let hparams = &self.hparams(hparams);
        let shape = self.spec.shape(hparams);
        let whole = |name: &str, transform| StoredForm {
            names: vec![format!("{}{name}", self.hf_prefix)],
            shape: stored_shape(shape.clone(), transform, hparams),
            transform,
        };
        let mut forms = Vec::new();
        match (hf.contains(EXPERT), shape.split_last()) {
            (true, Some((&n_expert, each))) => forms.push(StoredForm {
                names: (0..n_expert)
                    .map(|expert| hf.replace(EXPERT, &expert.to_string()))
                    .map(|name| format!("{}{name}", self.hf_prefix))
                    .collect(),
                shape: each.to_vec(),
                transform,
            }),
            _ if hf.is_empty() => {}
            _ => {
                let mut form = whole(hf, transform);
                if let (Some(beside), Some(n_columns)) = (self.spec.beside, form.shape.first_mut())
                {
                    *n_columns /= 2;
                    form.names.push(format!("{}{beside}", self.hf_prefix));
                }
                forms.push(form);
            }
        }
        let packed = self.spec.packed.as_ref();
        forms.extend(packed.map(|packed| whole(packed.hf, packed.transform)));
        forms
    }
}

/// Returns the checkpoint's shape of a tensor, given its shape in the GGUF file.
fn stored_shape(mut shape: Vec<u64>, transform: &[Transform], hparams: &Hparams) -> Vec<u64> {
    let last_first = transform.iter().rev();
    last_first.for_each(|change| change.undo_shape(&mut shape, hparams));
    shape
}

impl ArchSpec {
    /// Checks whether models of this architecture are drafts that read a target's hidden states.
    pub fn is_draft(&self) -> bool {
        super::DRAFTS.iter().any(|draft| draft.name == self.name)
    }

    /// Checks whether the files of a draft are made with those of its target: its tokenizer and layers.
    pub fn needs_target(&self) -> bool {
        self.is_draft() && !self.assistant
    }

    /// Returns all tensors of a model: those outside of layers, trunk layers, MTP layers. Tensors
    /// without elements are left out.
    pub fn expected(&'static self, hparams: &Hparams) -> Vec<Expected> {
        let mut all = Vec::new();
        let exists = |spec: &&TensorSpec| spec.scope == Scope::Model && spec.exists(hparams);
        for spec in self.tensor_specs().filter(exists) {
            let name = spec.gguf.to_owned();
            all.push(Expected {
                name,
                hf_prefix: String::new(),
                spec,
                layer: None,
            });
        }
        for layer in 0..hparams.n_block() {
            all.extend(self.layer(hparams, layer));
        }
        all
    }

    /// Returns the entries outside of the MTP head.
    pub fn tensor_specs(&self) -> impl Iterator<Item = &'static TensorSpec> + use<> {
        self.tensors.iter().copied().flatten()
    }

    /// Returns the entries of a head's block that layers of the trunk have, too. Empty if the
    /// architecture has no heads.
    pub fn head_layer(&self) -> impl Iterator<Item = &'static TensorSpec> + use<> {
        let is_dense = self.mtp.as_ref().is_some_and(|mtp| mtp.dense);
        let feed_forward = match self.has(Scope::Experts) && !is_dense {
            true => Scope::Experts,
            false => Scope::Dense,
        };
        let absent = self.mtp.as_ref().map(|mtp| mtp.absent);
        self.tensor_specs().filter(move |spec| {
            let applies = matches!(spec.scope, Scope::Layer | Scope::Attention);
            (applies || spec.scope == feed_forward)
                && absent.is_some_and(|absent| !absent.contains(&spec.gguf))
        })
    }

    /// Checks whether any layers of the architecture have tensors of this scope.
    pub fn has(&self, scope: Scope) -> bool {
        self.tensor_specs().any(|spec| spec.scope == scope)
    }

    /// Returns the tensors of one block; empty if there is no such block.
    pub fn layer(&'static self, hparams: &Hparams, layer: u32) -> Vec<Expected> {
        let Some(&kind) = hparams.layers.get(layer as usize) else {
            return Vec::new();
        };
        let hparams = &hparams.of_block(layer);
        let mtp = self.mtp.as_ref().filter(|_| kind == LayerKind::Mtp);
        let prefix = match mtp {
            Some(mtp) => mtp.hf_prefix(layer, hparams.n_layer),
            None => self.hf_layer.replace("{}", &layer.to_string()),
        };
        let applies = |scope| match scope {
            Scope::Model => false,
            Scope::Layer => true,
            Scope::Attention => matches!(kind, LayerKind::Attention | LayerKind::Mtp),
            Scope::Recurrent => kind == LayerKind::Recurrent,
            Scope::Dense => hparams.is_dense(layer),
            Scope::Experts => hparams.has_experts(layer),
            Scope::Mtp => kind == LayerKind::Mtp,
        };
        let own = mtp.map_or(&[][..], |mtp| mtp.tensors);
        self.tensor_specs()
            .chain(own)
            .filter(|spec| applies(spec.scope) && spec.exists(hparams))
            .map(|spec| Expected {
                name: format!("blk.{layer}.{}", spec.gguf),
                hf_prefix: match mtp {
                    Some(mtp) => mtp.prefix_of(spec.scope, &prefix).to_owned(),
                    None => prefix.clone(),
                },
                spec,
                layer: Some(layer),
            })
            .collect()
    }
}

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention over a KV cache.
    Attention,
    /// A recurrence over a fixed-size state.
    Recurrent,
    /// A feed-forward network alone, which has no cache.
    FeedForward,
    /// An MTP layer after the trunk, with softmax attention.
    Mtp,
}
