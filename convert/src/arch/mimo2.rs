//! MiMo V2.

use schemas::arch::keys;
use schemas::gguf::{Array, Value};

use crate::error::Error;
use crate::hf_config::HfConfig;

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, Model, NEXTN, computed, float, rotated_part, u32_key};

/// Layers with and without a sliding window, with their own numbers of KV heads; MTP heads have a window.
const KEYS: &[Key] = &[
    computed(keys::HEAD_COUNT_KV, |m| {
        let [full, sliding] = ["num_key_value_heads", "swa_num_key_value_heads"];
        let (full, sliding) = (count(m, full)?, count(m, sliding)?);
        let heads = |&slides: &i32| if slides == 1 { sliding } else { full };
        Ok(Some(array(pattern(m)?.iter().map(heads).collect())))
    }),
    u32_key(keys::SLIDING_WINDOW, &["sliding_window"]),
    computed(keys::SLIDING_WINDOW_PATTERN, |m| {
        Ok(Some(array(pattern(m)?)))
    }),
    u32_key(keys::VALUE_LENGTH, &["v_head_dim"]),
    u32_key(keys::EXPERT_COUNT, &["n_routed_experts"]),
    u32_key(keys::EXPERT_FEED_FORWARD_LENGTH, &["moe_intermediate_size"]),
    computed(keys::ROPE_DIMENSION_COUNT, |m| rotated_part(m, 1.0)),
    computed(keys::RMS_EPSILON, |m| {
        float(m.config.fields.f64(&["layernorm_epsilon"])?)
    }),
    computed(keys::VALUE_SCALE, |m| {
        float(m.config.fields.f64(&["attention_value_scale"])?)
    }),
    NEXTN,
];

fn array(entries: Vec<i32>) -> Value {
    Value::Array(Array::I32(entries))
}

/// Returns a number of heads.
fn count(m: &Model<'_>, field: &str) -> Result<i32, Error> {
    let n = m.config.fields.need_u32(field)?;
    Ok(n.try_into().unwrap_or(i32::MAX))
}

/// Returns for each block 1 if it has a sliding window, else 0.
fn pattern(m: &Model<'_>) -> Result<Vec<i32>, Error> {
    let field = "hybrid_layer_pattern";
    let n_layer = m.config.fields.need_u32("num_hidden_layers")? as usize;
    let layers = m.config.fields.i32s(&[field])?.unwrap_or_default();
    let is_valid = |&layer: &i32| layer == 0 || layer == 1;
    if layers.len() != n_layer || !layers.iter().all(is_valid) {
        return Err(Error::Field {
            path: m.config.path.clone(),
            field: field.to_owned(),
            expected: format!("0 or 1 for each of {n_layer} layers"),
            found: format!("{layers:?}"),
        });
    }
    let heads = (0..m.n_mtp).map(|_| 1);
    Ok(layers.into_iter().chain(heads).collect())
}

/// Rejects settings that files cannot express.
fn check(config: &HfConfig) -> Result<(), Error> {
    let fields = &config.fields;
    for (field, other) in [
        ("swa_head_dim", "head_dim"),
        ("swa_num_attention_heads", "num_attention_heads"),
        ("swa_v_head_dim", "v_head_dim"),
    ] {
        let (own, other) = (fields.u32(&[field])?, fields.u32(&[other])?);
        if let (Some(found), true) = (own, own != other) {
            return Err(config.unsupported(field, found));
        }
    }
    let method = fields.str(&["topk_method"])?;
    if let Some(found) = method.filter(|method| method != "noaux_tc") {
        return Err(config.unsupported("topk_method", found));
    }
    let scale = fields.f64(&["routed_scaling_factor"])?;
    if let Some(found) = scale.filter(|&scale| scale != 1.0) {
        return Err(config.unsupported("routed_scaling_factor", found));
    }
    if fields.bool(&["norm_topk_prob"])? == Some(false) {
        return Err(config.unsupported("norm_topk_prob", false));
    }
    Ok(())
}

pub(super) const MIMO2: HfArch = HfArch {
    name: "mimo2",
    keys: &[KEYS],
    defaults: &[Defaults {
        model_type: "mimo_v2",
        fields: &[
            ("layernorm_epsilon", Fill::Real(1e-5)),
            ("scoring_func", Fill::Text("sigmoid")),
            ("topk_method", Fill::Text("noaux_tc")),
        ],
        rope: &[],
    }],
    check,
    sharded: &["attn_qkv.weight"],
    experts_in_table_order: true,
    ..HfArch::PLAIN
};
