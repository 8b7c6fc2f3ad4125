//! Step 3.5.

use schemas::arch::keys;
use schemas::gguf::{Array, Value};
use serde_json::Value as Json;

use crate::error::Error;
use crate::hf_config::{Fields, HfConfig};

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, Model, NEXTN, computed, float, u32_key};

/// Names of the number of KV heads: in configs, and as transformers renames it.
const GROUPS: [&str; 2] = ["num_attention_groups", "num_key_value_heads"];

/// Numbers of heads by kind of layer, the sliding window, experts after dense layers, MTP heads.
const KEYS: &[Key] = &[
    computed(keys::HEAD_COUNT, |m| {
        heads(m, &["num_attention_heads"]).map(Some)
    }),
    computed(keys::HEAD_COUNT_KV, |m| heads(m, &GROUPS).map(Some)),
    u32_key(keys::SLIDING_WINDOW, &["sliding_window"]),
    computed(keys::SLIDING_WINDOW_PATTERN, |m| {
        Ok(Some(sliding(m)?.into()))
    }),
    u32_key(keys::VALUE_LENGTH, &["head_dim"]),
    u32_key(keys::EXPERT_COUNT, &["moe_num_experts", "n_routed_experts"]),
    u32_key(
        keys::EXPERT_USED_COUNT,
        &["moe_top_k", "num_experts_per_tok"],
    ),
    u32_key(keys::EXPERT_FEED_FORWARD_LENGTH, &["moe_intermediate_size"]),
    u32_key(
        keys::EXPERT_SHARED_FEED_FORWARD_LENGTH,
        &["share_expert_dim", "share_expert_dims"],
    ),
    computed(keys::EXPERT_WEIGHTS_SCALE, |m| {
        float(m.config.fields.f64(&["moe_router_scaling_factor"])?)
    }),
    computed(keys::EXPERT_WEIGHTS_NORM, |m| {
        let normalised = m.config.fields.bool(&["norm_expert_weight"])?;
        Ok(normalised.map(Value::from))
    }),
    computed(keys::LEADING_DENSE_BLOCK_COUNT, |m| {
        Ok(Some(n_dense(m.config)?.into()))
    }),
    computed(keys::MOE_EVERY_N_LAYERS, |m| {
        let interval = m.config.fields.u32(&["moe_every_n_layer"])?;
        Ok(Some(interval.unwrap_or(1).into()))
    }),
    computed(keys::RMS_EPSILON, |m| {
        float(Some(
            m.config.fields.f64(&["rms_norm_eps"])?.unwrap_or(1e-5),
        ))
    }),
    computed(keys::SWIGLU_CLAMP_EXP, |m| limits(m, "swiglu_limits")),
    computed(keys::SWIGLU_CLAMP_SHEXP, |m| {
        limits(m, "swiglu_limits_shared")
    }),
    NEXTN,
];

/// Returns a number of heads for each block; layers with a sliding window have their own.
fn heads(m: &Model<'_>, names: &[&str]) -> Result<Value, Error> {
    let read = |fields: &Fields| fields.u32(names);
    let full = match read(&m.config.fields)? {
        Some(n) => n,
        None => m.config.fields.need_u32(names[0])?,
    };
    let own = m.config.nested("attention_other_setting")?;
    let own = own
        .as_ref()
        .map(read)
        .transpose()?
        .flatten()
        .unwrap_or(full);
    let count = |slides: bool| -> i32 {
        let n = if slides { own } else { full };
        n.try_into().unwrap_or(i32::MAX)
    };
    let counts = sliding(m)?.into_iter().map(count).collect();
    Ok(Value::Array(Array::I32(counts)))
}

/// Returns for each block whether it has a sliding window; absent entries mean full attention.
fn sliding(m: &Model<'_>) -> Result<Vec<bool>, Error> {
    let fields = &m.config.fields;
    let n_layer = fields.need_u32("num_hidden_layers")?;
    let kinds = fields.strings(&["layer_types"])?.unwrap_or_default();
    let mut sliding: Vec<bool> = kinds
        .iter()
        .map(|kind| kind == "sliding_attention")
        .collect();
    sliding.resize(
        n_layer.saturating_add(m.n_mtp).min(MAX_BLOCKS) as usize,
        false,
    );
    Ok(sliding)
}

/// Upper limit of the number of blocks, against oversized lists from broken configs.
const MAX_BLOCKS: u32 = 1 << 16;

/// Returns a limit for each block, 0 for none, if the config has any.
fn limits(m: &Model<'_>, field: &str) -> Result<Option<Value>, Error> {
    let read = |value: &Json| {
        let limits = value.as_array()?.iter();
        let limit = |limit: &Json| match limit.is_null() {
            true => Some(0.0),
            false => limit.as_f64().map(|limit| limit as f32),
        };
        limits.map(limit).collect::<Option<Vec<f32>>>()
    };
    let limits = m.config.fields.typed(&[field], "a list of numbers", read)?;
    let n_block = sliding(m)?.len();
    Ok(limits.map(|mut limits| {
        limits.resize(n_block, 0.0);
        Value::Array(Array::F32(limits))
    }))
}

/// Returns the number of dense layers before those with experts.
fn n_dense(config: &HfConfig) -> Result<u32, Error> {
    let field = "moe_layers_enum";
    let layers = config.fields.str(&[field])?.unwrap_or_default();
    let layers = layers.trim();
    if layers.is_empty() {
        return Ok(0);
    }
    let n_layer = config.fields.need_u32("num_hidden_layers")?;
    let numbers: Option<Vec<u32>> = layers.split(',').map(|n| n.trim().parse().ok()).collect();
    let mut numbers = numbers.unwrap_or_default();
    numbers.sort_unstable();
    match numbers.first() {
        // No key expresses other layers.
        Some(&first) if numbers.iter().copied().eq(first..n_layer) => Ok(first),
        _ => Err(config.unsupported(field, layers)),
    }
}

/// Rejects settings that files cannot express.
fn check(config: &HfConfig) -> Result<(), Error> {
    n_dense(config)?;
    let field = "partial_rotary_factors";
    let numbers = |value: &Json| {
        let factors = value.as_array()?.iter();
        factors.map(Json::as_f64).collect::<Option<Vec<f64>>>()
    };
    let factors = config
        .fields
        .typed(&[field], "a list of numbers", numbers)?;
    let kinds = config.fields.strings(&["layer_types"])?.unwrap_or_default();
    let is_usual = |(factor, kind): (&f64, &String)| {
        *factor
            == if kind == "sliding_attention" {
                1.0
            } else {
                0.5
            }
    };
    if let Some(factors) = factors.filter(|factors| !factors.iter().zip(&kinds).all(is_usual)) {
        return Err(config.unsupported(field, format!("{factors:?}")));
    }
    let bases = config.fields.get("rope_theta").and_then(Json::as_array);
    if let Some(bases) = bases.filter(|bases| bases.len() > 2) {
        let is_same = |(base, kind): (&Json, &String)| {
            base == &bases[usize::from(kind == "sliding_attention")]
        };
        if !bases.iter().zip(&kinds).all(is_same) {
            return Err(config.unsupported("rope_theta", "a base of its own for some layers"));
        }
    }
    let interval = config.fields.u32(&["moe_every_n_layer"])?;
    match interval.filter(|&interval| interval != 1) {
        Some(interval) => Err(config.unsupported("moe_every_n_layer", interval)),
        None => Ok(()),
    }
}

pub(super) const STEP35: HfArch = HfArch {
    name: "step35",
    keys: &[KEYS],
    defaults: &[Defaults {
        model_type: "step3p5",
        fields: &[
            ("rms_norm_eps", Fill::Real(1e-5)),
            ("sliding_window", Fill::Integer(512)),
        ],
        rope: &[],
    }],
    check,
    ..HfArch::PLAIN
};
