//! Gemma 4, text only, and its assistants.

use std::sync::Arc;

use safetensors::Dtype;
use schemas::arch::{TOKEN_ORDERING, keys};
use schemas::gguf::{Array, DType, Owned, Tensor, Value};
use serde_json::Value as Json;

use crate::checkpoint::StoredTensor;
use crate::error::Error;
use crate::hf_config::{HfConfig, SLIDING_THETA};

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, Model, all_but_every, computed, float, layers_of_kind, u32_key};

/// Keys of a model and of its assistant, in file order.
const KEYS: &[Key] = &[
    computed(keys::FINAL_LOGIT_SOFTCAPPING, |m| {
        let cap = m.config.fields.f64(&["final_logit_softcapping"])?;
        float(cap.filter(|&cap| cap != 0.0))
    }),
    u32_key(keys::SLIDING_WINDOW, &["sliding_window"]),
    computed(keys::SHARED_KV_LAYERS, |m| Ok(Some(n_shared(m)?.into()))),
    computed(keys::EMBEDDING_LENGTH_PER_LAYER, |m| {
        let width = m.config.fields.u32(&["hidden_size_per_layer_input"])?;
        Ok(Some(width.unwrap_or(0).into()))
    }),
    computed(keys::SLIDING_WINDOW_PATTERN, |m| {
        Ok(Some(sliding(m)?.into()))
    }),
    computed(keys::KEY_LENGTH, |m| full_head_dim(m).map(Some)),
    computed(keys::VALUE_LENGTH, |m| full_head_dim(m).map(Some)),
    u32_key(keys::KEY_LENGTH_SWA, &["head_dim"]),
    u32_key(keys::VALUE_LENGTH_SWA, &["head_dim"]),
    u32_key(
        keys::EXPERT_FEED_FORWARD_LENGTH,
        &["expert_intermediate_size", "moe_intermediate_size"],
    ),
    computed(keys::FEED_FORWARD_LENGTH, wide_layers),
    computed(keys::HEAD_COUNT_KV, kv_heads),
    computed(keys::ROPE_DIMENSION_COUNT, |m| full_head_dim(m).map(Some)),
    u32_key(keys::ROPE_DIMENSION_COUNT_SWA, &["head_dim"]),
];

/// Field with the settings that differ between layers, in configs of transformers 5.24 and later.
const BY_LAYER: &str = "per_layer_config";

/// Interval of layers with full attention, in configs without a list.
const PERIOD: u32 = 6;

/// Returns for each layer whether it has a sliding window.
fn sliding(m: &Model<'_>) -> Result<Vec<bool>, Error> {
    match layers_of_kind(m, "sliding_attention")? {
        Some(layers) => Ok(layers),
        None => {
            let n_layer = m.config.fields.need_u32("num_hidden_layers")?;
            let mut layers = all_but_every(PERIOD, n_layer);
            if let Some(last) = layers.last_mut() {
                *last = false;
            }
            Ok(layers)
        }
    }
}

/// Returns the number of last layers that attend to the keys and values of earlier ones.
fn n_shared(m: &Model<'_>) -> Result<u32, Error> {
    Ok(m.config.fields.u32(&["num_kv_shared_layers"])?.unwrap_or(0))
}

/// Returns a setting of layers with full attention: the first entry of the config by layer, else a field of
/// its own, which may be a default.
fn of_full_layers(m: &Model<'_>, field: &str, entry: &str) -> Result<Option<u32>, Error> {
    let sliding = sliding(m)?;
    let value = |(layer, config): (&String, &Json)| {
        let layer: usize = layer.parse().ok()?;
        let value = config.get(entry)?.as_u64()?.try_into().ok()?;
        (sliding.get(layer) == Some(&false)).then_some(value)
    };
    let by_layer = m.config.nested(BY_LAYER)?;
    match by_layer.and_then(|layers| layers.map.iter().find_map(value)) {
        Some(value) => Ok(Some(value)),
        None => m.config.fields.u32(&[field]),
    }
}

/// Returns the head size of layers with full attention.
fn full_head_dim(m: &Model<'_>) -> Result<Value, Error> {
    let width = of_full_layers(m, "global_head_dim", "head_dim")?;
    match width {
        Some(width) => Ok(width.into()),
        None => Ok(m.config.fields.need_u32("global_head_dim")?.into()),
    }
}

/// Returns the number of KV heads of each layer, if layers with full attention have their own.
fn kv_heads(m: &Model<'_>) -> Result<Option<Value>, Error> {
    let full = of_full_layers(m, "num_global_key_value_heads", "num_key_value_heads")?;
    let own = m.config.fields.u32(&["num_key_value_heads"])?;
    let (Some(full), Some(own)) = (full, own) else {
        return Ok(None);
    };
    let count = |slides| integer(if slides { own } else { full });
    let counts = sliding(m)?.into_iter().map(count).collect();
    Ok(Some(Value::Array(Array::I32(counts))))
}

/// Returns the feed-forward width of each layer, if layers without their own keys and values are twice as
/// wide.
fn wide_layers(m: &Model<'_>) -> Result<Option<Value>, Error> {
    if m.config.fields.bool(&["use_double_wide_mlp"])? != Some(true) {
        return Ok(None);
    }
    let width = m.config.fields.need_u32("intermediate_size")?;
    let n_layer = sliding(m)?.len();
    let n_own = n_layer.saturating_sub(n_shared(m)? as usize);
    let width = |layer| {
        integer(if layer < n_own {
            width
        } else {
            width.saturating_mul(2)
        })
    };
    let widths = (0..n_layer).map(width).collect();
    Ok(Some(Value::Array(Array::I32(widths))))
}

/// Converts to the integers of arrays.
fn integer(n: u32) -> i32 {
    n.try_into().unwrap_or(i32::MAX)
}

/// Rejects settings that files cannot express.
fn check(config: &HfConfig) -> Result<(), Error> {
    let fields = &config.fields;
    for field in ["attention_bias", "use_bidirectional_attention"] {
        if fields.get(field) == Some(&Json::Bool(true)) {
            return Err(config.unsupported(field, true));
        }
    }
    let field = "hidden_activation";
    let activation = fields.str(&[field])?;
    if let Some(found) = activation.filter(|activation| activation != "gelu_pytorch_tanh") {
        return Err(config.unsupported(field, found));
    }
    let kind = config.rope.str(&["rope_type"])?.unwrap_or_default();
    let is_given = fields
        .get("rope_parameters")
        .is_some_and(|rope| !rope.is_null());
    if is_given && kind != "proportional" {
        return Err(config.unsupported("rope_type", kind));
    }
    Ok(())
}

pub(super) const GEMMA4: HfArch = HfArch {
    name: "gemma4",
    keys: &[KEYS],
    defaults: &[Defaults {
        model_type: "gemma4_text",
        fields: &[
            ("vocab_size", Fill::Integer(262_144)),
            ("hidden_size", Fill::Integer(2304)),
            ("intermediate_size", Fill::Integer(9216)),
            ("num_hidden_layers", Fill::Integer(30)),
            ("num_attention_heads", Fill::Integer(8)),
            ("num_key_value_heads", Fill::Integer(4)),
            ("head_dim", Fill::Integer(256)),
            ("global_head_dim", Fill::Without(BY_LAYER, 512)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("sliding_window", Fill::Integer(512)),
            ("hidden_size_per_layer_input", Fill::Integer(256)),
        ],
        rope: &[
            ("rope_theta", 1e6),
            (SLIDING_THETA, 10_000.0),
            ("partial_rotary_factor", 0.25),
        ],
    }],
    check,
    gemma4_layout: true,
    ..HfArch::PLAIN
};

/// Keys that only assistants have.
const ASSISTANT_KEYS: &[Key] = &[
    u32_key(keys::EMBEDDING_LENGTH_OUT, &["backbone_hidden_size"]),
    u32_key(keys::NEXTN_PREDICT_LAYERS, &["num_hidden_layers"]),
    computed(keys::CENTROID_COUNT, |m| {
        centroid_key(m, "num_centroids", 2048)
    }),
    computed(keys::CENTROID_USED_COUNT, |m| {
        centroid_key(m, "centroid_intermediate_top_k", 32)
    }),
];

/// Returns a number of clusters, if the checkpoint has them.
fn centroid_key(m: &Model<'_>, field: &str, default: u32) -> Result<Option<Value>, Error> {
    let n = m.config.fields.u32(&[field])?.unwrap_or(default);
    Ok(m.has_centroids.then_some(n.into()))
}

pub(super) const GEMMA4_ASSISTANT: HfArch = HfArch {
    name: "gemma4-assistant",
    keys: &[KEYS, ASSISTANT_KEYS],
    check,
    gemma4_layout: true,
    ..HfArch::PLAIN
};

/// Prefix of the tensors that choose clusters of tokens.
const CLUSTERS: &str = "masked_embedding.";
/// Name of the tokens in the order of clusters.
const ORDERING: &str = "masked_embedding.token_ordering";

/// An assistant's tensors, split into weights and the order of tokens.
pub(crate) struct Split {
    pub(crate) tensors: Vec<StoredTensor>,
    /// All tokens, cluster by cluster; `None` if there are no clusters.
    pub(crate) ordering: Option<Tensor>,
}

/// Takes the order of tokens from an assistant's tensors; leaves out the clusters if they are not wanted, or if the
/// config does not use them.
pub(crate) fn split(
    config: &HfConfig,
    tensors: Vec<StoredTensor>,
    n_vocab: u64,
    is_wanted: bool,
) -> Result<Split, Error> {
    let is_used = is_wanted && config.fields.bool(&["use_ordered_embeddings"])? == Some(true);
    let is_kept = |tensor: &StoredTensor| is_used || !tensor.name.starts_with(CLUSTERS);
    let tensors = tensors.into_iter().filter(is_kept);
    let (found, tensors): (Vec<_>, Vec<_>) = tensors.partition(|tensor| tensor.name == ORDERING);
    let ordering = match found.first() {
        Some(stored) => Some(ordering(stored, n_vocab)?),
        None => None,
    };
    Ok(Split { tensors, ordering })
}

/// Reads the order of tokens, which must have each token once.
fn ordering(stored: &StoredTensor, n_vocab: u64) -> Result<Tensor, Error> {
    let error = |found: String| Error::TokenOrdering {
        path: stored.path(),
        tensor: stored.name.clone(),
        found,
        n_vocab,
    };
    let width = match stored.dtype {
        Dtype::I64 => 8,
        Dtype::I32 => 4,
        other => return Err(error(format!("elements of type {other:?}"))),
    };
    if stored.shape.iter().product::<u64>() != n_vocab {
        return Err(error(format!("shape {:?}", stored.shape)));
    }
    let bytes = stored.bytes()?;
    let mut seen = vec![false; n_vocab as usize];
    let mut tokens = Vec::with_capacity(4 * n_vocab as usize);
    for (row, bytes) in bytes.chunks_exact(width).enumerate() {
        let mut wide = [if bytes[width - 1] < 128 { 0 } else { 255 }; 8];
        wide[..width].copy_from_slice(bytes);
        let token = i64::from_le_bytes(wide);
        let is_free = usize::try_from(token)
            .ok()
            .and_then(|token| seen.get_mut(token));
        match is_free {
            Some(seen) if !*seen => *seen = true,
            Some(_) => return Err(error(format!("token {token} again in row {row}"))),
            None => return Err(error(format!("token {token} in row {row}"))),
        }
        tokens.extend((token as i32).to_le_bytes());
    }
    let source = Arc::new(Owned {
        row_bytes: tokens.len() as u64,
        bytes: tokens,
    });
    Tensor::new(TOKEN_ORDERING, vec![n_vocab], DType::I32, source).map_err(|source| Error::Size {
        path: stored.path(),
        tensor: stored.name.clone(),
        source,
    })
}
