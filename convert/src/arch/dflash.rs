//! DFlash and DSpark drafts: the block, the target's layers that they read, and their heads.

use schemas::arch::keys;
use schemas::gguf::{Array, Value};

use crate::error::Error;
use crate::hf_config::{Fields, HfConfig};

use super::keys::{HfArch, Key, Model, computed, float, rotated_part};

/// Fields are in this object, or in the root.
const OBJECT: &str = "dflash_config";

const KEYS: &[Key] = &[
    computed(keys::ROPE_DIMENSION_COUNT, |m| {
        match m.config.rope.f64(&["partial_rotary_factor"])? {
            None => Ok(None),
            Some(part) => rotated_part(m, part),
        }
    }),
    number(keys::VALUE_SCALE, "attention_value_scale"),
    computed(keys::BLOCK_SIZE, |m| {
        let size = integer(m.config, "block_size")?;
        Ok(Some(size.unwrap_or(DEFAULT_BLOCK).into()))
    }),
    size(keys::CONV_KERNEL_SIZE, "conv_kernel_size"),
    size(keys::CONV_GROUP_SIZE, "conv_group_size"),
    size(keys::SELECTOR_RANK, "selector_rank"),
    size(keys::SELECTOR_TOP_K, "selector_top_k"),
    number(keys::LOGIT_SCALE, "output_multiplier"),
    number(keys::FINAL_LOGIT_SOFTCAPPING, "final_logit_softcapping"),
    computed(keys::EMBEDDING_SCALE, |m| {
        if let Some(scale) = real(m.config, "input_embedding_scale")? {
            return float(Some(scale));
        }
        // Gemma scales its embeddings, and no other file of the pair states it.
        let Some(target) = m.target else {
            return Ok(None);
        };
        match target.class()?.starts_with("Gemma") {
            true => float(Some(
                f64::from(target.fields.need_u32("hidden_size")?).sqrt(),
            )),
            false => Ok(None),
        }
    }),
    computed(keys::TARGET_LAYERS, |m| Ok(Some(layers(m)?.into()))),
    computed(keys::SLIDING_WINDOW, |m| {
        Ok(window(m.config)?.map(|(size, _)| size.into()))
    }),
    computed(keys::SLIDING_WINDOW_PATTERN, |m| {
        Ok(window(m.config)?.map(|(_, layers)| layers.into()))
    }),
    computed(keys::CAUSAL, |m| {
        let causal = match m.config.fields.bool(&["is_causal"])? {
            Some(causal) => Some(causal),
            None => match object(m.config)? {
                Some(object) => object.bool(&["causal"])?,
                None => None,
            },
        };
        Ok(causal.map(Value::from))
    }),
    computed(keys::ROPE_DIMENSION_SECTIONS, |m| {
        let Some(target) = m.target else {
            return Ok(None);
        };
        if target.rope.i32s(&["mrope_section"])?.is_none() {
            return Ok(None);
        }
        let width = super::keys::head_dim(m)?.unwrap_or_default();
        let half = i32::try_from(width / 2).unwrap_or(i32::MAX);
        Ok(Some(Value::Array(Array::I32(vec![half, 0, 0, 0]))))
    }),
    computed(keys::SAMPLE_FROM_ANCHOR, |m| {
        if !is_dspark(m.config)? {
            return Ok(None);
        }
        let given = m.config.fields.bool(&["sample_from_anchor"])?;
        // The layout of the speculators library starts with the token after the anchor.
        let others = ["transformer_layer_config", "aux_hidden_state_layer_ids"];
        let usual = !others
            .iter()
            .any(|field| m.config.root.contains_key(*field));
        Ok(Some(given.unwrap_or(usual).into()))
    }),
    computed(keys::HAS_CONFIDENCE_HEAD, |m| {
        if !is_dspark(m.config)? {
            return Ok(None);
        }
        Ok(Some(m.has_confidence_head.into()))
    }),
];

/// Tokens of a block, if the config has no number.
const DEFAULT_BLOCK: u32 = 16;

const fn size(key: &'static str, field: &'static str) -> Key {
    super::keys::computed_from(key, field, |m, field| {
        Ok(integer(m.config, field)?.map(Value::from))
    })
}

const fn number(key: &'static str, field: &'static str) -> Key {
    super::keys::computed_from(key, field, |m, field| float(real(m.config, field)?))
}

fn object(config: &HfConfig) -> Result<Option<Fields>, Error> {
    config.nested(OBJECT)
}

fn integer(config: &HfConfig, field: &str) -> Result<Option<u32>, Error> {
    either(config, |fields| fields.u32(&[field]))
}

fn real(config: &HfConfig, field: &str) -> Result<Option<f64>, Error> {
    either(config, |fields| fields.f64(&[field]))
}

/// Reads a field of the object, else of the root.
fn either<T>(
    config: &HfConfig,
    read: impl Fn(&Fields) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let own = object(config)?.as_ref().map(&read).transpose()?.flatten();
    own.map_or_else(|| read(&config.fields), |own| Ok(Some(own)))
}

/// Returns true for drafts with a Markov head.
pub(crate) fn is_dspark(config: &HfConfig) -> Result<bool, Error> {
    Ok(config.class()?.contains("DSpark"))
}

/// Returns the token that stands for a position to be predicted.
pub(crate) fn mask_token(config: &HfConfig) -> Result<u32, Error> {
    let field = "mask_token_id";
    let n_vocab = config.fields.need_u32("vocab_size")?;
    let found = integer(config, field)?;
    match found.filter(|&id| id < n_vocab) {
        Some(id) => Ok(id),
        None => Err(Error::Field {
            path: config.path.clone(),
            field: format!("{OBJECT}.{field}"),
            expected: format!("a token below {n_vocab}"),
            found: found.map_or("nothing".to_owned(), |id| id.to_string()),
        }),
    }
}

/// Returns the target's layers whose inputs the draft reads: those after the named ones.
fn layers(m: &Model<'_>) -> Result<Vec<i32>, Error> {
    let (field, shifted) = ("target_layer_ids", "aux_hidden_state_layer_ids");
    let ids = either(m.config, |fields| fields.i32s(&[field]))?;
    let (field, layers) = match ids {
        Some(ids) => (field, ids.iter().map(|id| id.saturating_add(1)).collect()),
        None => (
            shifted,
            m.config.fields.i32s(&[shifted])?.unwrap_or_default(),
        ),
    };
    let n_layer = match m.target {
        Some(target) => target.fields.need_u32("num_hidden_layers")?,
        None => u32::MAX,
    };
    let n_layer = i32::try_from(n_layer).unwrap_or(i32::MAX);
    match !layers.is_empty() && layers.iter().all(|layer| (1..=n_layer).contains(layer)) {
        true => Ok(layers),
        false => Err(Error::Field {
            path: m.config.path.clone(),
            field: field.to_owned(),
            expected: format!("layers of the target, which has {n_layer}"),
            found: format!("{layers:?}"),
        }),
    }
}

/// Returns the sliding window, and for each layer whether it has one.
fn window(config: &HfConfig) -> Result<Option<(u32, Vec<bool>)>, Error> {
    let n_layer = config.fields.need_u32("num_hidden_layers")? as usize;
    if either(config, |fields| fields.bool(&["use_swa"]))? == Some(true) {
        let size = integer(config, "swa_window_size")?;
        let size =
            size.ok_or_else(|| config.unsupported("use_swa", "true without swa_window_size"))?;
        return Ok(Some((size, vec![true; n_layer])));
    }
    if config.fields.bool(&["use_sliding_window"])? != Some(true) {
        return Ok(None);
    }
    let Some(size) = config.fields.u32(&["sliding_window"])? else {
        return Ok(None);
    };
    let kinds = config.fields.strings(&["layer_types"])?.unwrap_or_default();
    if kinds.len() != n_layer {
        let found = "true without layer_types for each layer";
        return Err(config.unsupported("use_sliding_window", found));
    }
    let sliding: Vec<bool> = kinds
        .iter()
        .map(|kind| kind == "sliding_attention")
        .collect();
    Ok(sliding.contains(&true).then_some((size, sliding)))
}

/// Rejects settings that files cannot express.
fn check(config: &HfConfig) -> Result<(), Error> {
    let fields = &config.fields;
    if fields.bool(&["rope_is_neox_style"])? == Some(false) {
        return Err(config.unsupported("rope_is_neox_style", false));
    }
    let markov = fields.str(&["markov_head_type"])?;
    if let Some(found) = markov.filter(|kind| kind != "vanilla") {
        return Err(config.unsupported("markov_head_type", found));
    }
    if config.folder.join("mask_embedding.pt").exists() {
        return Err(config.unsupported("mask_token_id", "an embedding in mask_embedding.pt"));
    }
    mask_token(config).map(drop)
}

pub(super) const DFLASH: HfArch = HfArch {
    name: "dflash",
    keys: &[KEYS],
    check,
    ..HfArch::PLAIN
};
