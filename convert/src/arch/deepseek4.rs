//! DeepSeek V4.

use schemas::arch::{DEEPSEEK4_DSPARK, Expected, keys};
use schemas::gguf::{Array, Value};

use crate::checkpoint::StoredTensor;
use crate::error::{Error, Names};
use crate::hf_config::HfConfig;

use super::keys::{HfArch, Key, Model, NEXTN, computed, u32_key};

const KEYS: &[Key] = &[
    u32_key(keys::ROPE_DIMENSION_COUNT, &["qk_rope_head_dim"]),
    u32_key(keys::Q_LORA_RANK, &["q_lora_rank"]),
    u32_key(keys::SLIDING_WINDOW, &["sliding_window"]),
    u32_key(keys::EXPERT_FEED_FORWARD_LENGTH, &["moe_intermediate_size"]),
    u32_key(keys::EXPERT_SHARED_COUNT, &["n_shared_experts"]),
    computed(keys::EXPERT_WEIGHTS_SCALE, |m| {
        real(m, "routed_scaling_factor")
    }),
    computed(keys::EXPERT_WEIGHTS_NORM, |m| {
        Ok(m.config.fields.bool(&["norm_topk_prob"])?.map(Value::from))
    }),
    computed(keys::SWIGLU_CLAMP_EXP, limits),
    computed(keys::SWIGLU_CLAMP_SHEXP, limits),
    u32_key(keys::INDEXER_HEAD_COUNT, &["index_n_heads"]),
    u32_key(keys::INDEXER_KEY_LENGTH, &["index_head_dim"]),
    u32_key(keys::INDEXER_TOP_K, &["index_topk"]),
    u32_key(keys::OUTPUT_GROUP_COUNT, &["o_groups"]),
    u32_key(keys::OUTPUT_LORA_RANK, &["o_lora_rank"]),
    computed(keys::COMPRESS_RATIOS, |m| {
        let ratios = ratios(m.config, n_block(m)?)?;
        Ok(Some(Value::Array(Array::I32(ratios))))
    }),
    computed(keys::COMPRESS_ROPE_FREQ_BASE, |m| {
        real(m, "compress_rope_theta")
    }),
    u32_key(keys::HYPER_CONNECTION_COUNT, &["hc_mult"]),
    u32_key(keys::HYPER_CONNECTION_ITERATIONS, &["hc_sinkhorn_iters"]),
    computed(keys::HYPER_CONNECTION_EPSILON, |m| real(m, "hc_eps")),
    u32_key(keys::HASH_LAYER_COUNT, &["num_hash_layers"]),
];

/// Keys of models only.
const MODEL_KEYS: &[Key] = &[
    computed(keys::EMBEDDING_LENGTH_OUT, |m| {
        let n_embd = m.config.fields.need_u32("hidden_size")?;
        let n_stream = m.config.fields.need_u32("hc_mult")?;
        Ok(Some(n_embd.saturating_mul(n_stream).into()))
    }),
    NEXTN,
];

/// Keys of DSpark drafts only.
const DRAFT_KEYS: &[Key] = &[
    u32_key(keys::BLOCK_SIZE, &["dspark_block_size"]),
    computed(keys::TARGET_LAYERS, |m| Ok(Some(target_layers(m)?.into()))),
];

/// Integers that readers require.
const INTEGERS: [&str; 17] = [
    "max_position_embeddings",
    "num_attention_heads",
    "head_dim",
    "n_routed_experts",
    "num_experts_per_tok",
    "qk_rope_head_dim",
    "q_lora_rank",
    "sliding_window",
    "moe_intermediate_size",
    "n_shared_experts",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "o_groups",
    "o_lora_rank",
    "hc_mult",
    "hc_sinkhorn_iters",
];

/// Maximum number of layers; readers have the same limit.
const MAX_BLOCKS: usize = 512;

/// Numbers of positions that layers compress to one.
const RATIOS: &str = "compress_ratios";
/// Layers that choose experts by a table of tokens.
const HASH_LAYERS: &str = "num_hash_layers";

/// Returns a floating-point value, which readers require.
fn real(m: &Model<'_>, field: &str) -> Result<Option<Value>, Error> {
    Ok(Some(Value::F32(m.config.fields.need_f64(field)? as f32)))
}

/// Returns the number of all blocks of the file.
fn n_block(m: &Model<'_>) -> Result<u32, Error> {
    let n_layer = m.config.fields.need_u32("num_hidden_layers")?;
    Ok(n_layer.saturating_add(m.n_mtp))
}

/// Returns the limit of activations of each block.
fn limits(m: &Model<'_>) -> Result<Option<Value>, Error> {
    let n_block = n_block(m)?;
    // Checks the number of blocks.
    ratios(m.config, n_block)?;
    let limit = m.config.fields.need_f64("swiglu_limit")? as f32;
    Ok(Some(Value::Array(Array::F32(vec![
        limit;
        n_block as usize
    ]))))
}

/// Returns the compression ratios of all layers of the config.
fn ratios(config: &HfConfig, n_block: u32) -> Result<Vec<i32>, Error> {
    let ratios = config.fields.i32s(&[RATIOS])?.unwrap_or_default();
    let is_known = ratios.iter().all(|ratio| [0, 4, 128].contains(ratio));
    let is_long_enough = (n_block as usize..=MAX_BLOCKS).contains(&ratios.len());
    if is_known && is_long_enough {
        return Ok(ratios);
    }
    let unknown = ratios.iter().find(|ratio| ![0, 4, 128].contains(*ratio));
    Err(Error::Field {
        path: config.path.clone(),
        field: RATIOS.to_owned(),
        expected: format!(
            "0, 4 or 128 for each of {n_block} layers, and at most {MAX_BLOCKS} entries"
        ),
        found: match unknown {
            Some(ratio) => ratio.to_string(),
            None => format!("{} entries", ratios.len()),
        },
    })
}

/// Checks that the config has all fields that readers need, and rejects settings that they do not know.
fn check(config: &HfConfig) -> Result<(), Error> {
    let fields = &config.fields;
    for field in INTEGERS {
        fields.need_u32(field)?;
    }
    fields.need_f64("rms_norm_eps")?;
    config.rope.need_f64("rope_theta")?;
    let normalised = "norm_topk_prob";
    if fields.bool(&[normalised])?.is_none() {
        return Err(Error::MissingField {
            path: config.path.clone(),
            field: normalised.to_owned(),
        });
    }
    let n_head_kv = fields.need_u32("num_key_value_heads")?;
    if n_head_kv != 1 {
        return Err(config.unsupported("num_key_value_heads", n_head_kv));
    }
    let scoring = fields.str(&["scoring_func"])?;
    if scoring.as_deref() != Some("sqrtsoftplus") {
        return Err(Error::Field {
            path: config.path.clone(),
            field: "scoring_func".to_owned(),
            expected: "sqrtsoftplus".to_owned(),
            found: scoring.unwrap_or_else(|| "nothing".to_owned()),
        });
    }
    let n_layer = fields.need_u32("num_hidden_layers")?;
    let n_hash_layer = fields.need_u32(HASH_LAYERS)?;
    if n_hash_layer > n_layer {
        return Err(Error::Field {
            path: config.path.clone(),
            field: HASH_LAYERS.to_owned(),
            expected: format!("at most {n_layer}, the number of layers"),
            found: n_hash_layer.to_string(),
        });
    }
    ratios(config, n_layer).map(drop)
}

/// Returns true for the bias of experts in a layer that does not choose by scores; readers do not use it.
fn is_unread(config: &HfConfig, name: &str) -> bool {
    let layer = name.strip_prefix("model.layers.");
    let layer = layer.and_then(|rest| rest.strip_suffix(".ffn.gate.bias"));
    let layer = layer.and_then(|layer| layer.parse::<u32>().ok());
    let n_hash_layer = config.fields.u32(&[HASH_LAYERS]).ok().flatten();
    layer.zip(n_hash_layer).is_some_and(|(layer, n)| layer < n)
}

/// Returns the layers of the target whose inputs the draft reads: those after the named ones.
fn target_layers(m: &Model<'_>) -> Result<Vec<i32>, Error> {
    let field = "dspark_target_layer_ids";
    let n_layer = match m.target {
        Some(target) => target.fields.need_u32("num_hidden_layers")?,
        None => 0,
    };
    let n_layer = i32::try_from(n_layer).unwrap_or(i32::MAX);
    let ids = m.config.fields.i32s(&[field])?.unwrap_or_default();
    match !ids.is_empty() && ids.iter().all(|id| (0..n_layer).contains(id)) {
        true => Ok(ids.iter().map(|id| id + 1).collect()),
        false => Err(Error::Field {
            path: m.config.path.clone(),
            field: field.to_owned(),
            expected: format!("layers of the target, which has {n_layer}"),
            found: format!("{ids:?}"),
        }),
    }
}

/// Prefix of the tensors of a draft's layers, before their number.
const STAGE: &str = "mtp.";

/// Returns the layer of a draft that a tensor belongs to, and the tensor's name in it.
fn stage_of(name: &str) -> Option<(u32, &str)> {
    let (stage, rest) = name.strip_prefix(STAGE)?.split_once('.')?;
    Some((stage.parse().ok()?, rest))
}

/// Changes the config of a model to that of its draft, which has a layer for each MTP head.
///
/// # Errors
/// The checkpoint has no layers of a draft, or too many, or no token for positions to be predicted.
pub(crate) fn select_draft(config: &mut HfConfig, stored: &[StoredTensor]) -> Result<(), Error> {
    let stages = stored.iter().filter_map(|tensor| stage_of(&tensor.name));
    let Some(last) = stages.map(|(stage, _)| stage).max() else {
        return Err(Error::MissingTensors {
            path: config.folder.clone(),
            names: Names(vec![format!("{STAGE}0.main_proj.weight")]),
        });
    };
    let n_stage = last.saturating_add(1);
    if n_stage as usize > MAX_BLOCKS {
        return Err(Error::MtpCount {
            path: config.folder.clone(),
            arch: DSPARK.name,
            found: n_stage,
            max: MAX_BLOCKS as u32,
        });
    }
    let mask_token = config.fields.need_u32("dspark_noise_token_id")?;
    config.fields.need_u32("dspark_block_size")?;
    let map = &mut config.fields.map;
    map.insert("num_hidden_layers".to_owned(), n_stage.into());
    map.insert(RATIOS.to_owned(), vec![0; n_stage as usize].into());
    map.insert(HASH_LAYERS.to_owned(), 0.into());
    map.insert("mask_token_id".to_owned(), mask_token.into());
    Ok(())
}

/// Finds the layers of the checkpoint that have the draft's tensors outside of layers.
pub(crate) fn find_draft_ends(expected: &mut [Expected], stored: &[StoredTensor]) {
    for tensor in expected.iter_mut().filter(|tensor| tensor.layer.is_none()) {
        let mut stages = stored.iter().filter_map(|stored| stage_of(&stored.name));
        let stage = stages.find(|(_, name)| *name == tensor.spec.hf);
        let stage = stage.map_or(0, |(stage, _)| stage);
        tensor.hf_prefix = format!("{STAGE}{stage}.");
    }
}

/// Returns true for tensors of the model, and for those of a draft that only models with images have.
fn is_unread_by_draft(_: &HfConfig, name: &str) -> bool {
    !name.starts_with(STAGE)
        || name.ends_with(".ffn.gate.bias_vl")
        || name.ends_with(".ffn.gate.tid2eid")
}

pub(super) const DEEPSEEK4: HfArch = HfArch {
    name: "deepseek4",
    keys: &[KEYS, MODEL_KEYS],
    is_unread,
    sidecar_only: true,
    dspark: Some((DEEPSEEK4_DSPARK, &DSPARK)),
    ..COMMON
};

static DSPARK: HfArch = HfArch {
    name: "dflash",
    keys: &[KEYS, DRAFT_KEYS],
    is_unread: is_unread_by_draft,
    ..COMMON
};

/// Values of models and drafts.
const COMMON: HfArch = HfArch {
    check,
    leading: &[
        &["ffn_gate_tid2eid.weight"],
        &[
            "ffn_gate_exps.weight",
            "ffn_down_exps.weight",
            "ffn_up_exps.weight",
        ],
        &["nextn.eh_proj.weight"],
    ],
    keeps_types: true,
    template_first: true,
    ..HfArch::PLAIN
};
