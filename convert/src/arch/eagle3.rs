//! EAGLE-3 drafts: parameters taken from the target, and the map between the two vocabularies.
//!
//! Two layouts are in use: `midlayer.*` with a flat config (SpecForge, AngelSlim), and `layers.0.*` with
//! the layer's settings in `transformer_layer_config` (speculators). `hf_config` and `checkpoint` normalise
//! both to one.

use safetensors::Dtype;
use schemas::arch::{self, ArchSpec, keys};
use schemas::gguf::{Metadata, Tensor, Value};
use schemas::vocab::{D2T, check_d2t, write_d2t};

use crate::checkpoint::StoredTensor;
use crate::config::ConvertConfig;
use crate::error::{Error, Names};
use crate::hf_config::HfConfig;
use crate::note::Note;

use super::dflash;
use super::keys::{HfArch, LLAMA_KEYS};

pub(super) const EAGLE3: HfArch = HfArch {
    name: "eagle3",
    keys: &[LLAMA_KEYS],
    llama_vocab_rules: true,
    ..HfArch::PLAIN
};

/// Offsets from draft tokens to target tokens, one per row of the output head.
const OFFSETS: &str = "d2t";
/// Mask of the target tokens that have a draft token; redundant with the offsets.
const MASK: &str = "t2d";

/// Returns the architecture of a checkpoint. A single layer with its own vocabulary is a draft, whatever
/// `class` its config names.
pub(crate) fn arch_of(
    config: &HfConfig,
    class: &'static ArchSpec,
) -> Result<&'static ArchSpec, Error> {
    if class.is_draft() {
        return Ok(class);
    }
    let one_layer = config.fields.u32(&["num_hidden_layers"])? == Some(1);
    Ok(match config.fields.get("draft_vocab_size") {
        Some(_) if one_layer => &arch::DRAFTS[0],
        _ => class,
    })
}

/// A draft checkpoint with its target's config.
pub(crate) struct Draft<'a> {
    config: &'a HfConfig,
    /// The target, whose tokenizer the draft shares.
    pub(crate) target: HfConfig,
}

/// A draft's tensors, split into weights and the vocabulary map.
pub(crate) struct Split {
    /// Tensors of the architecture's table.
    pub(crate) tensors: Vec<StoredTensor>,
    /// The target token of each row of the output head; `None` if the draft has the whole vocabulary.
    pub(crate) d2t: Option<Tensor>,
}

impl<'a> Draft<'a> {
    /// Opens the target of a draft; `None` for a model that is not a draft.
    pub(crate) fn open(
        arch: &ArchSpec,
        config: &'a HfConfig,
        options: &ConvertConfig,
    ) -> Result<Option<Draft<'a>>, Error> {
        match (&options.target, arch.needs_target()) {
            // An assistant has all it needs, with or without its target.
            _ if arch.assistant => Ok(None),
            (None, true) => Err(Error::NeedsTarget {
                path: config.folder.clone(),
            }),
            (Some(target), true) => Ok(Some(Draft {
                config,
                target: HfConfig::open(target)?,
            })),
            (Some(_), false) => Err(Error::NoDraft {
                path: config.folder.clone(),
                arch: arch.name,
            }),
            (None, false) => Ok(None),
        }
    }

    /// Returns the keys that describe the target's hidden states that the draft reads.
    pub(crate) fn metadata(&self, arch: &ArchSpec) -> Result<Metadata, Error> {
        let mut out = Metadata::new();
        if arch.name != EAGLE3.name {
            return Ok(out);
        }
        let mut set =
            |suffix: &str, value: Value| out.set(format!("{}.{suffix}", arch.name), value);
        let width = self.config.fields.u32(&[keys::TARGET_HIDDEN_SIZE])?;
        let width = match width {
            Some(width) => width,
            None => self.target.fields.need_u32("hidden_size")?,
        };
        set(keys::TARGET_LAYERS, self.layers()?.into());
        set(keys::TARGET_HIDDEN_SIZE, width.into());
        for flag in [keys::NORM_BEFORE_RESIDUAL, keys::NORM_BEFORE_FC] {
            set(
                flag,
                self.config.fields.bool(&[flag])?.unwrap_or(false).into(),
            );
        }
        Ok(out)
    }

    /// Returns the target layers whose inputs the draft reads.
    fn layers(&self) -> Result<Vec<i32>, Error> {
        let field = "eagle_aux_hidden_state_layer_ids";
        let n_layer = self.target.fields.need_u32("num_hidden_layers")?;
        let n_layer = i32::try_from(n_layer).unwrap_or(i32::MAX);
        let given = match self.config.fields.i32s(&[field])? {
            Some(layers) => Some(layers),
            None => match self.config.nested("eagle_config")? {
                Some(nested) => nested.i32s(&[field])?,
                None => None,
            },
        };
        // The default layers of training code.
        let layers = given
            .filter(|layers| !layers.is_empty())
            .unwrap_or_else(|| vec![2, n_layer / 2, n_layer - 3]);
        match layers.iter().all(|layer| (0..=n_layer).contains(layer)) {
            true => Ok(layers),
            false => Err(Error::Field {
                path: self.config.path.clone(),
                field: field.to_owned(),
                expected: format!("layers 0 to {n_layer} of the target"),
                found: format!("{layers:?}"),
            }),
        }
    }

    /// Returns the number of target tokens, which are the draft's input vocabulary.
    pub(crate) fn n_vocab(&self) -> Result<u64, Error> {
        let ours = self.config.fields.need_u32("vocab_size")?;
        let theirs = self.target.fields.need_u32("vocab_size")?;
        match ours == theirs {
            true => Ok(ours.into()),
            false => Err(Error::Field {
                path: self.config.path.clone(),
                field: "vocab_size".to_owned(),
                expected: format!("{theirs}, as in {}", self.target.path.display()),
                found: ours.to_string(),
            }),
        }
    }

    /// Returns the number of tokens of the draft's output head.
    pub(crate) fn n_vocab_draft(&self) -> Result<u64, Error> {
        let field = "draft_vocab_size";
        let n_vocab = self.n_vocab()?;
        let reduced = self.config.fields.u32(&[field])?.filter(|&n| n > 0);
        match reduced.map_or(n_vocab, u64::from) {
            n if n <= n_vocab => Ok(n),
            n => Err(Error::Field {
                path: self.config.path.clone(),
                field: field.to_owned(),
                expected: format!("at most {n_vocab}"),
                found: n.to_string(),
            }),
        }
    }

    /// Leaves out the tensors that llama.cpp's converter drops: the embedding if the config says that the
    /// draft has none of its own, and the output head of a DSpark draft with all tokens.
    pub(crate) fn used(&self, tensors: Vec<StoredTensor>) -> Result<Vec<StoredTensor>, Error> {
        let fields = &self.config.fields;
        let no_embedding = fields.bool(&["has_embed_tokens"])? == Some(false);
        let no_head = dflash::is_dspark(self.config)? && self.n_vocab_draft()? == self.n_vocab()?;
        let is_used = |tensor: &StoredTensor| match tensor.text_name().as_str() {
            "model.embed_tokens.weight" => !no_embedding,
            "lm_head.weight" => !no_head,
            _ => true,
        };
        Ok(tensors.into_iter().filter(is_used).collect())
    }

    /// Separates the vocabulary map from the other tensors.
    pub(crate) fn split(
        &self,
        mut tensors: Vec<StoredTensor>,
        notes: &mut Vec<Note>,
    ) -> Result<Split, Error> {
        let mut take = |name: &str| {
            let at = tensors.iter().position(|tensor| tensor.name == name)?;
            Some(tensors.remove(at))
        };
        let (offsets, mask) = (take(OFFSETS), take(MASK));
        let (n_vocab, n_draft) = (self.n_vocab()?, self.n_vocab_draft()?);
        let missing = |name: &str| Error::MissingTensors {
            path: self.config.folder.clone(),
            names: Names(vec![name.to_owned()]),
        };
        let Some(offsets) = offsets else {
            return match n_draft == n_vocab {
                true => Ok(Split { tensors, d2t: None }),
                false => Err(missing(OFFSETS)),
            };
        };
        // A missing output head means that the target's is used, which has all tokens.
        if !tensors.iter().any(|tensor| tensor.name == "lm_head.weight") {
            return Err(missing("lm_head.weight"));
        }
        let ids = target_ids(&offsets, n_draft, n_vocab)?;
        if let Some(mask) = mask
            && !agrees(&mask, &ids)?
        {
            notes.push(Note::DraftVocab { tensor: mask.name });
        }
        Ok(Split {
            tensors,
            d2t: Some(write_d2t(D2T, &ids)),
        })
    }
}

/// Converts the offsets to token ids and checks that each is a distinct token of the target.
fn target_ids(offsets: &StoredTensor, n_draft: u64, n_vocab: u64) -> Result<Vec<u32>, Error> {
    if offsets.shape != [n_draft] {
        return Err(Error::Shape {
            path: offsets.path(),
            tensor: offsets.name.clone(),
            found: offsets.shape.clone(),
            expected: vec![n_draft],
        });
    }
    let bytes = offsets.bytes()?;
    let stored: Vec<i64> = match offsets.dtype {
        Dtype::I64 => {
            let (words, _) = bytes.as_chunks();
            words.iter().map(|&b| i64::from_le_bytes(b)).collect()
        }
        Dtype::I32 => {
            let (words, _) = bytes.as_chunks();
            words
                .iter()
                .map(|&b| i32::from_le_bytes(b).into())
                .collect()
        }
        found => {
            return Err(Error::IntegerType {
                path: offsets.path(),
                tensor: offsets.name.clone(),
                found,
            });
        }
    };
    let absolute = (0i64..)
        .zip(stored)
        .map(|(row, offset)| row.saturating_add(offset));
    let ids: Vec<i64> = absolute.collect();
    check_d2t(&offsets.name, &ids, n_vocab).map_err(|source| Error::D2t {
        path: offsets.path(),
        source,
    })
}

/// Returns true if the mask has exactly these tokens.
fn agrees(mask: &StoredTensor, ids: &[u32]) -> Result<bool, Error> {
    let known = mask.bytes()?;
    let n_known = known.iter().filter(|&&known| known != 0).count();
    let has = |&id: &u32| known.get(id as usize).is_some_and(|&known| known != 0);
    Ok(mask.dtype != Dtype::BOOL || (n_known == ids.len() && ids.iter().all(has)))
}
