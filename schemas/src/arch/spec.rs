//! The shape of an architecture's table: which tensors it has, under which names, of which shapes.

use super::hparams::{Gating, Hparams};
use super::window::WindowSpec;

/// One axis of a tensor, from the hyperparameters.
pub type Dim = fn(&Hparams) -> u64;

/// What an architecture's files hold. Everything that converts, quantizes, grafts or runs a model
/// reads it from here.
#[derive(Debug)]
pub struct ArchSpec {
    /// `general.architecture`, also the prefix of the architecture's keys.
    pub name: &'static str,
    /// Class names in `architectures` of an HF `config.json`.
    pub hf_classes: &'static [&'static str],
    /// Tensors outside the MTP head, in groups that architectures share.
    pub tensors: &'static [&'static [TensorSpec]],
    /// The MTP head, where the architecture can have one.
    pub mtp: Option<MtpSpec>,
    /// The window of attention, where some layers can have one.
    pub window: Option<WindowSpec>,
    /// How tokens choose among experts, as far as a file does not say.
    pub routing: RoutingSpec,
}

impl ArchSpec {
    /// An architecture without tensors, and with what most have beside them.
    pub(super) const PLAIN: ArchSpec = ArchSpec {
        name: "",
        hf_classes: &[],
        tensors: &[],
        mtp: None,
        window: None,
        routing: RoutingSpec {
            gating: Gating::Softmax,
            normalised: true,
        },
    };
}

/// What readers take for absent keys of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct RoutingSpec {
    /// What makes weights of the router's outputs.
    pub gating: Gating,
    /// Whether the weights of a token's experts sum to one.
    pub normalised: bool,
}

/// How an architecture lays out its MTP (NextN) heads.
///
/// A head is one more block behind the trunk: the architecture's own attention layer, plus these
/// tensors under `blk.N.`.
#[derive(Debug)]
pub struct MtpSpec {
    /// What stands before the tensor's name in HF checkpoints, with the head's number as `{}`.
    pub hf_layer: &'static str,
    /// How heads are numbered there.
    pub numbering: Numbering,
    /// Tensors that only a head has. Their HF names are whole, or those in its layer.
    pub tensors: &'static [TensorSpec],
}

/// How HF checkpoints number MTP heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// From zero; what only a head has is named apart from its layer.
    Own,
    /// As further layers of the trunk, which hold all of a head.
    Blocks,
}

impl MtpSpec {
    /// What stands before HF names in the layer of a block that is a head, in a model with that
    /// many trunk layers.
    pub fn hf_prefix(&self, block: u32, n_layer: u32) -> String {
        let number = match self.numbering {
            Numbering::Own => block - n_layer,
            Numbering::Blocks => block,
        };
        self.hf_layer.replace("{}", &number.to_string())
    }

    /// What stands before HF names of what only a head has, beside those of its layer.
    pub fn own_hf_prefix<'a>(&self, layer: &'a str) -> &'a str {
        match self.numbering {
            Numbering::Own => "",
            Numbering::Blocks => layer,
        }
    }
}

/// Where a tensor occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Once a file.
    Model,
    /// In every layer, MTP layers included.
    Layer,
    /// In layers with softmax attention, MTP layers included.
    Attention,
    /// In layers with a recurrent state.
    Recurrent,
    /// In layers with one feed-forward block for all tokens.
    Dense,
    /// In layers whose tokens choose among feed-forward blocks.
    Experts,
    /// In MTP layers only.
    Mtp,
}

/// Whether a file may lack a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No.
    Required,
    /// Yes: some models of the architecture have it, or readers have a stand-in.
    Optional,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct TensorSpec {
    /// GGUF name, without `blk.N.`.
    pub gguf: &'static str,
    /// HF name, without the layer's prefix; empty for a tensor that the converter computes. With
    /// `{}` in it, each expert has a tensor of that name with its number there, and the row's last
    /// axis stacks them.
    pub hf: &'static str,
    /// The other way in which checkpoints store it.
    pub packed: Option<Packed>,
    /// Axes, the contiguous one first.
    pub shape: &'static [Dim],
    /// Where it occurs.
    pub scope: Scope,
    /// What the converter does to the values, in order.
    pub transform: &'static [Transform],
    /// Whether a file may lack it.
    pub need: Need,
}

/// Stands for the number of an expert in the HF name of a tensor that each expert has.
const EXPERT: &str = "{}";

/// All experts in one tensor, where other checkpoints have one for each.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    /// HF name, without the layer's prefix.
    pub hf: &'static str,
    /// What the converter does to the values, in order.
    pub transform: &'static [Transform],
}

/// A change of values between checkpoint and GGUF, on the checkpoint's rows and columns.
#[derive(Clone, Copy, Debug)]
pub enum Transform {
    /// `w + 1`: norms that the checkpoint stores as an offset from one.
    AddOne,
    /// `-exp(w)`: the checkpoint's `A_log`.
    NegExp,
    /// Rows of each of that many heads from rotate-half order to interleaved pairs:
    /// `out[2j + t] = in[t * rows / 2 + j]`.
    RopePairs {
        /// Heads in the rows.
        n_head: Dim,
    },
    /// Rows of value heads, `width` a head, from `start` on, from grouped by key head to tiled:
    /// `out[r * n_k + k] = in[k * n_v / n_k + r]`.
    TileValueRows {
        /// First row of the value heads.
        start: Dim,
        /// Rows of one value head.
        width: Dim,
    },
    /// The same for columns, all of them.
    TileValueColumns {
        /// Columns of one value head.
        width: Dim,
    },
    /// Some parts of rows that the checkpoint keeps in groups, each of these parts one after
    /// another: the first part taken of every group, then the next.
    TakeRows {
        /// Groups in all rows.
        n_group: Dim,
        /// Rows of each part of a group.
        widths: &'static [Dim],
        /// Which parts are taken.
        parts: &'static [usize],
    },
    /// One of every so many columns, or elements of a vector: `out[i] = in[of * i + part]`.
    TakeColumns {
        /// How many columns take turns.
        of: u64,
        /// Which of them is taken.
        part: u64,
    },
    /// Rows and columns of each of that many groups of rows exchanged:
    /// `out[group][i][j] = in[group][j][i]`.
    Transpose {
        /// Groups in all rows.
        n_group: Dim,
    },
}

impl Transform {
    /// Makes of the axes of a tensor after the change those before it.
    fn undo_shape(&self, shape: &mut [u64], hparams: &Hparams) {
        match (*self, shape) {
            (Transform::TakeRows { widths, parts, .. }, [_, n_rows, ..]) => {
                let group: u64 = widths.iter().map(|width| width(hparams)).sum();
                let taken: u64 = parts.iter().map(|&part| widths[part](hparams)).sum();
                *n_rows = *n_rows / taken.max(1) * group;
            }
            (Transform::TakeColumns { of, .. }, [n_columns, ..]) => *n_columns *= of,
            (Transform::Transpose { .. }, [n_columns, n_rows, ..]) => {
                std::mem::swap(n_columns, n_rows);
            }
            _ => {}
        }
    }
}

impl TensorSpec {
    /// A required row without a transform.
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
            transform: &[],
            need: Need::Required,
        }
    }

    /// The same row, which some checkpoints store in this other way.
    pub const fn or_packed(self, hf: &'static str, transform: &'static [Transform]) -> TensorSpec {
        TensorSpec {
            packed: Some(Packed { hf, transform }),
            ..self
        }
    }

    /// The same row, but a file may lack it.
    pub const fn optional(self) -> TensorSpec {
        TensorSpec {
            need: Need::Optional,
            ..self
        }
    }

    /// The same row with these changes of values.
    pub const fn with(self, transform: &'static [Transform]) -> TensorSpec {
        TensorSpec { transform, ..self }
    }

    /// Whether a model with these hyperparameters has elements of it.
    pub fn exists(&self, hparams: &Hparams) -> bool {
        self.shape.iter().all(|dim| dim(hparams) > 0)
    }

    /// The shape in a model with these hyperparameters.
    pub fn shape(&self, hparams: &Hparams) -> Vec<u64> {
        self.shape.iter().map(|dim| dim(hparams)).collect()
    }
}

/// A tensor that a model of known hyperparameters has.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Full GGUF name.
    pub name: String,
    /// What stands before its HF names.
    pub hf_prefix: String,
    /// Its row of the table.
    pub spec: &'static TensorSpec,
    /// The block it belongs to; `None` for [`Scope::Model`].
    pub layer: Option<u32>,
}

/// One way in which checkpoints store a tensor.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Full HF names: one, or one for each expert in order of their numbers.
    pub names: Vec<String>,
    /// Axes of each, the contiguous one first.
    pub shape: Vec<u64>,
    /// What the converter does to the values, in order.
    pub transform: &'static [Transform],
}

impl Expected {
    /// Every way in which checkpoints store the tensor; none for one that the converter computes.
    pub fn stored(&self, hparams: &Hparams) -> Vec<Stored> {
        let TensorSpec { hf, transform, .. } = *self.spec;
        let shape = self.spec.shape(hparams);
        let whole = |name: &str, transform| Stored {
            names: vec![format!("{}{name}", self.hf_prefix)],
            shape: stored_shape(shape.clone(), transform, hparams),
            transform,
        };
        let mut ways = Vec::new();
        match (hf.contains(EXPERT), shape.split_last()) {
            (true, Some((&n_expert, each))) => ways.push(Stored {
                names: (0..n_expert)
                    .map(|expert| hf.replace(EXPERT, &expert.to_string()))
                    .map(|name| format!("{}{name}", self.hf_prefix))
                    .collect(),
                shape: each.to_vec(),
                transform,
            }),
            _ if hf.is_empty() => {}
            _ => ways.push(whole(hf, transform)),
        }
        let packed = self.spec.packed.as_ref();
        ways.extend(packed.map(|packed| whole(packed.hf, packed.transform)));
        ways
    }
}

/// The shape in the checkpoint of a tensor of that shape in the file.
fn stored_shape(mut shape: Vec<u64>, transform: &[Transform], hparams: &Hparams) -> Vec<u64> {
    let last_first = transform.iter().rev();
    last_first.for_each(|change| change.undo_shape(&mut shape, hparams));
    shape
}

impl ArchSpec {
    /// Whether models of it only draft for a target whose hidden states they see.
    pub fn is_draft(&self) -> bool {
        super::DRAFTS.iter().any(|draft| draft.name == self.name)
    }

    /// Every tensor of a model, in the order trunk-level, layers, MTP layers. Rows without
    /// elements are not among them.
    pub fn expected(&'static self, hparams: &Hparams) -> Vec<Expected> {
        let mut all = Vec::new();
        let exists = |spec: &&TensorSpec| spec.scope == Scope::Model && spec.exists(hparams);
        for spec in self.rows().filter(exists) {
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

    /// The rows outside the MTP head.
    pub fn rows(&self) -> impl Iterator<Item = &'static TensorSpec> + use<> {
        self.tensors.iter().copied().flatten()
    }

    /// Whether some layers of the architecture have rows of that scope.
    pub fn has(&self, scope: Scope) -> bool {
        self.rows().any(|row| row.scope == scope)
    }

    /// The tensors of one block; empty beyond the last.
    pub fn layer(&'static self, hparams: &Hparams, layer: u32) -> Vec<Expected> {
        let Some(&kind) = hparams.layers.get(layer as usize) else {
            return Vec::new();
        };
        let mtp = self.mtp.as_ref().filter(|_| kind == LayerKind::Mtp);
        let prefix = match mtp {
            Some(mtp) => mtp.hf_prefix(layer, hparams.n_layer),
            None => format!("model.layers.{layer}."),
        };
        let applies = |scope| match scope {
            Scope::Model => false,
            Scope::Layer => true,
            Scope::Attention => kind != LayerKind::Recurrent,
            Scope::Recurrent => kind == LayerKind::Recurrent,
            Scope::Dense => !hparams.has_experts(layer),
            Scope::Experts => hparams.has_experts(layer),
            Scope::Mtp => kind == LayerKind::Mtp,
        };
        let own = mtp.map_or(&[][..], |mtp| mtp.tensors);
        let own_prefix = mtp.map_or("", |mtp| mtp.own_hf_prefix(&prefix));
        self.rows()
            .chain(own)
            .filter(|spec| applies(spec.scope) && spec.exists(hparams))
            .map(|spec| Expected {
                name: format!("blk.{layer}.{}", spec.gguf),
                hf_prefix: match spec.scope {
                    Scope::Mtp => own_prefix.to_owned(),
                    _ => prefix.clone(),
                },
                spec,
                layer: Some(layer),
            })
            .collect()
    }
}

/// What a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention over a KV cache.
    Attention,
    /// A recurrence over a fixed-size state.
    Recurrent,
    /// An MTP layer behind the trunk, with softmax attention.
    Mtp,
}
