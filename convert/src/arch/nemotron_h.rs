//! Nemotron-H, dense and with experts.

use schemas::arch::{LayerKind, keys};
use schemas::gguf::{Array, Value};

use crate::error::Error;
use crate::hf_config::HfConfig;

use super::defaults::{Defaults, Fill};
use super::keys::{HfArch, Key, LLAMA_KEYS, Model, NEXTN, WEIGHTS_SCALE, computed, u32_key};

/// Context length that llama.cpp's converter writes for models without positions.
const ANY_CONTEXT: u32 = 1 << 20;

/// Keys of Mamba-2 layers and of attention without positions.
const HYBRID: &[Key] = &[
    u32_key(keys::SSM_CONV_KERNEL, &["conv_kernel", "mamba_d_conv"]),
    u32_key(keys::SSM_STATE_SIZE, &["ssm_state_size", "mamba_d_state"]),
    u32_key(keys::SSM_GROUP_COUNT, &["n_groups"]),
    computed(keys::SSM_INNER_SIZE, |m| {
        let width = m.config.fields.need_u32("mamba_head_dim")?;
        let n_head = m.config.fields.need_u32(SSM_HEADS)?;
        Ok(Some(width.saturating_mul(n_head).into()))
    }),
    u32_key(keys::SSM_TIME_STEP_RANK, &[SSM_HEADS]),
    computed(keys::HEAD_COUNT_KV, |m| {
        let n_head_kv = m.config.fields.need_u32("num_key_value_heads")?;
        per_block(m, n_head_kv, LayerKind::Attention).map(Some)
    }),
    computed(keys::ROPE_SCALING_FINETUNED, |_| Ok(Some(false.into()))),
    computed(keys::CONTEXT_LENGTH, |_| Ok(Some(ANY_CONTEXT.into()))),
    u32_key(keys::KEY_LENGTH, &["head_dim", "attention_head_dim"]),
    u32_key(keys::VALUE_LENGTH, &["head_dim", "attention_head_dim"]),
];

const SSM_HEADS: &str = "mamba_num_heads";

const DENSE: &[Key] = &[computed(keys::FEED_FORWARD_LENGTH, |m| {
    let n_ff = m.config.fields.need_u32("intermediate_size")?;
    per_block(m, n_ff, LayerKind::FeedForward).map(Some)
})];

const EXPERTS: &[Key] = &[
    computed(keys::FEED_FORWARD_LENGTH, |m| {
        let n_ff = m.config.fields.need_u32("moe_intermediate_size")?;
        per_block(m, n_ff, LayerKind::FeedForward).map(Some)
    }),
    u32_key(keys::EXPERT_FEED_FORWARD_LENGTH, &["moe_intermediate_size"]),
    u32_key(
        keys::EXPERT_SHARED_FEED_FORWARD_LENGTH,
        &["moe_shared_expert_intermediate_size"],
    ),
    u32_key(keys::EXPERT_SHARED_COUNT, &["n_shared_experts"]),
    computed(keys::EXPERT_WEIGHTS_NORM, |m| {
        Ok(m.config.fields.bool(&["norm_topk_prob"])?.map(Value::from))
    }),
    WEIGHTS_SCALE,
    u32_key(keys::MOE_LATENT_SIZE, &["moe_latent_size"]),
    NEXTN,
];

/// Returns `value` for blocks of a kind, 0 for others. A head has both attention and a network.
fn per_block(m: &Model<'_>, value: u32, kind: LayerKind) -> Result<Value, Error> {
    let value = i32::try_from(value).unwrap_or(i32::MAX);
    let trunk = pattern(m.config)?.into_iter().map(|found| found == kind);
    let heads = (0..m.n_mtp).map(|_| true);
    let entries = trunk.chain(heads).map(|has| if has { value } else { 0 });
    Ok(Value::Array(Array::I32(entries.collect())))
}

/// Returns the kind of each layer, from a text with a letter per layer or from a list of names.
fn pattern(config: &HfConfig) -> Result<Vec<LayerKind>, Error> {
    let letters = config.fields.str(&["hybrid_override_pattern"])?;
    let names = match &letters {
        Some(letters) => letters.chars().map(String::from).collect(),
        None => config.fields.strings(&[LAYERS])?.unwrap_or_default(),
    };
    let kind = |name: &String| match name.as_str() {
        "M" | "mamba" | "linear_attention" => Some(LayerKind::Recurrent),
        "*" | "attention" | "full_attention" => Some(LayerKind::Attention),
        "-" | "E" | "mlp" | "moe" => Some(LayerKind::FeedForward),
        _ => None,
    };
    let kinds: Option<Vec<LayerKind>> = names.iter().map(kind).collect();
    let n_layer = config.fields.need_u32("num_hidden_layers")?;
    match kinds {
        Some(kinds) if kinds.len() == n_layer as usize => Ok(kinds),
        _ => Err(Error::Field {
            path: config.path.clone(),
            field: if letters.is_some() {
                "hybrid_override_pattern"
            } else {
                LAYERS
            }
            .to_owned(),
            expected: format!(
                "M (mamba), * (attention), - (mlp) or E (moe) for each of {n_layer} layers"
            ),
            found: names.join(" "),
        }),
    }
}

const LAYERS: &str = "layers_block_type";

/// Rejects settings that readers do not know.
fn check(config: &HfConfig) -> Result<(), Error> {
    let fields = &config.fields;
    for (field, expected) in [("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")] {
        if let Some(found) = fields.str(&[field])?.filter(|found| found != expected) {
            return Err(config.unsupported(field, found));
        }
    }
    for field in ["attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"] {
        if fields.bool(&[field])? == Some(true) {
            return Err(config.unsupported(field, true));
        }
    }
    // An absent or null upper limit is infinity.
    let limits = fields
        .get("time_step_limit")
        .and_then(|limits| limits.as_array());
    if let Some([min, max]) = limits.map(Vec::as_slice)
        && (min.as_f64().is_some_and(|min| min > 0.0) || max.as_f64().is_some())
    {
        return Err(config.unsupported("time_step_limit", format!("[{min}, {max}]")));
    }
    Ok(())
}

fn has_experts(config: &HfConfig) -> bool {
    config.fields.get("num_experts_per_tok").is_some()
}

const DEFAULTS: &[Defaults] = &[Defaults {
    model_type: "nemotron_h",
    fields: &[("num_hidden_layers", Fill::EntriesOf(LAYERS))],
    rope: &[],
}];

pub(super) const NEMOTRON_H: HfArch = HfArch {
    name: "nemotron_h",
    keys: &[LLAMA_KEYS, HYBRID, DENSE],
    defaults: DEFAULTS,
    check,
    without: HEAD_WIDTH,
    has_positions: false,
    matches: |config| !has_experts(config),
    ..HfArch::PLAIN
};

pub(super) const NEMOTRON_H_MOE: HfArch = HfArch {
    name: "nemotron_h_moe",
    keys: &[LLAMA_KEYS, HYBRID, EXPERTS],
    defaults: DEFAULTS,
    check,
    without: HEAD_WIDTH,
    has_positions: false,
    matches: has_experts,
    ..HfArch::PLAIN
};

/// Written later than in other files.
const HEAD_WIDTH: &[&str] = &[keys::KEY_LENGTH, keys::VALUE_LENGTH];
