//! EAGLE-3 drafts: what a checkpoint of one leaves to its target, and the map between their
//! vocabularies.
//!
//! Two layouts are in use, `midlayer.*` with a flat config (SpecForge, AngelSlim) and `layers.0.*`
//! with the layer's settings in `transformer_layer_config` (speculators). `hf_config` and
//! `checkpoint` make one of both.

use safetensors::Dtype;
use schemas::arch::{self, ArchSpec, keys};
use schemas::gguf::{Metadata, Tensor, Value};
use schemas::vocab::{D2T, check_d2t, write_d2t};

use crate::checkpoint::StoredTensor;
use crate::config::ConvertConfig;
use crate::error::{Error, Names};
use crate::hf_config::HfConfig;
use crate::note::Note;

/// Offsets from a draft token to the target's, one for each row of the output head.
const OFFSETS: &str = "d2t";
/// Which of the target's tokens have a draft token; says nothing that the offsets do not.
const MASK: &str = "t2d";

/// The architecture of a checkpoint whose class has that one: a single layer with a vocabulary of
/// its own is a draft, whatever its class is called.
pub(crate) fn arch_of(
    config: &HfConfig,
    class: &'static ArchSpec,
) -> Result<&'static ArchSpec, Error> {
    let one_layer = config.fields.u32(&["num_hidden_layers"])? == Some(1);
    Ok(match config.fields.get("draft_vocab_size") {
        Some(_) if one_layer => &arch::DRAFTS[0],
        _ => class,
    })
}

/// A draft checkpoint together with its target's config.
pub(crate) struct Draft<'a> {
    config: &'a HfConfig,
    /// The target, whose tokenizer is also the draft's.
    pub(crate) target: HfConfig,
}

/// A draft's tensors without those that name tokens.
pub(crate) struct Split {
    /// What the table has rows for.
    pub(crate) tensors: Vec<StoredTensor>,
    /// The target's token of each row of the output head; `None` where the draft knows them all.
    pub(crate) d2t: Option<Tensor>,
}

impl<'a> Draft<'a> {
    /// Opens the target of a draft; `None` for a model that decodes by itself.
    pub(crate) fn open(
        arch: &ArchSpec,
        config: &'a HfConfig,
        options: &ConvertConfig,
    ) -> Result<Option<Draft<'a>>, Error> {
        match (&options.target, arch.is_draft()) {
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

    /// The keys that say what the draft sees of its target.
    pub(crate) fn metadata(&self, arch: &ArchSpec) -> Result<Metadata, Error> {
        let mut out = Metadata::new();
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

    /// The layers of the target whose inputs the draft sees.
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
        // What drafts are trained on where nothing else is said.
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

    /// Tokens of the target, which are those that the draft is asked with.
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

    /// Tokens that the draft's output head knows.
    pub(crate) fn n_vocab_draft(&self) -> Result<u64, Error> {
        let reduced = self.config.fields.u32(&["draft_vocab_size"])?;
        reduced.map_or_else(|| self.n_vocab(), |n| Ok(n.into()))
    }

    /// Takes the tensors that name tokens apart from the others.
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
        // The target's output head, which stands in for an absent one, knows all tokens.
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

/// The offsets as absolute ids, each a token of the target, none twice.
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
            return Err(Error::MapType {
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

/// Whether the mask has just these tokens.
fn agrees(mask: &StoredTensor, ids: &[u32]) -> Result<bool, Error> {
    let known = mask.bytes()?;
    let n_known = known.iter().filter(|&&known| known != 0).count();
    let has = |&id: &u32| known.get(id as usize).is_some_and(|&known| known != 0);
    Ok(mask.dtype != Dtype::BOOL || (n_known == ids.len() && ids.iter().all(has)))
}
