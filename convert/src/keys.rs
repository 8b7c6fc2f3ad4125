//! The metadata keys of each architecture, and the config fields that they come from.
//!
//! Keys are written in table order: first those of every text model, then the architecture's own.

use schemas::arch::{ArchSpec, Hparams, ROPE_FREQS, gemma3, keys, yarn_whole_pairs};
use schemas::gguf::{Metadata, Value};

use crate::config::FileType;
use crate::error::Error;
use crate::hf_config::{HfConfig, SLIDING_THETA};
use crate::note::Note;

/// The inputs that keys are computed from.
pub(crate) struct Model<'a> {
    pub(crate) arch: &'static ArchSpec,
    pub(crate) config: &'a HfConfig,
    /// MTP layers in the file.
    pub(crate) n_mtp: u32,
    pub(crate) file_type: FileType,
}

/// A key and the function that computes its value; `None` if the model does not have the key.
struct Key {
    name: &'static str,
    value: fn(&Model<'_>) -> Result<Option<Value>, Error>,
}

/// Keys of one architecture, in addition to the common ones.
struct ArchKeys {
    arch: &'static str,
    keys: &'static [&'static [Key]],
}

/// Returns the architecture's keys, including `general.file_type`.
pub(crate) fn metadata(model: &Model<'_>) -> Result<Metadata, Error> {
    let arch = model.arch;
    let mut metadata = Metadata::new();
    for key in COMMON.iter().chain(own_keys(arch)) {
        if let Some(value) = (key.value)(model)? {
            let name = match key.name {
                keys::FILE_TYPE => keys::FILE_TYPE.to_owned(),
                suffix => format!("{}.{suffix}", arch.name),
            };
            metadata.set(name, value);
        }
    }
    Ok(metadata)
}

/// Returns the architecture's keys that are not common ones.
fn own_keys(arch: &ArchSpec) -> impl Iterator<Item = &'static Key> {
    let own = ARCHS.iter().find(|own| own.arch == arch.name);
    own.into_iter()
        .flat_map(|own| own.keys.iter().copied().flatten())
}

/// Checks settings that no key expresses: an error if readers would compute something else, a note if they
/// would only differ for long contexts.
pub(crate) fn check(arch: &ArchSpec, config: &HfConfig) -> Result<Vec<Note>, Error> {
    let mut notes = Vec::new();
    let window = config.fields.get("sliding_window");
    let used = config.fields.bool(&["use_sliding_window"])?.unwrap_or(true);
    let unsaid = used && arch.window.is_none();
    if let (Some(window), true) = (window.filter(|window| !window.is_null()), unsaid) {
        notes.push(Note::SlidingWindow {
            window: window.to_string(),
        });
    }
    let softcap = "attn_logit_softcapping";
    if let Some(cap) = config.fields.f64(&[softcap])? {
        return Err(unsupported(config, softcap, cap));
    }
    // Readers score groups by the sum of their two best experts, and rotate adjacent pairs.
    let fields = &config.fields;
    let method = fields.str(&["topk_method"])?;
    let grouped = fields.u32(&["n_group"])?.is_some_and(|n| n > 1);
    if let (Some(method @ ("greedy" | "group_limited_greedy")), true) = (method.as_deref(), grouped)
    {
        return Err(unsupported(config, "topk_method", method));
    }
    // Readers hard-code these numbers.
    for (field, expected) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        if let Some(found) = fields.f64(&[field])?.filter(|&found| found != expected) {
            return Err(unsupported(config, field, found));
        }
    }
    if fields.bool(&["rope_interleave"])? == Some(false) {
        return Err(unsupported(config, "rope_interleave", false));
    }
    notes.extend(check_rope(arch, config)?);
    Ok(notes)
}

/// Rejects a model with a query scale that readers do not use, because no key expresses it.
pub(crate) fn check_scale(config: &HfConfig, hparams: &Hparams) -> Result<(), Error> {
    let field = "query_pre_attn_scalar";
    match config.fields.f64(&[field])? {
        Some(scalar) if scalar != gemma3::query_width(hparams) as f64 => {
            Err(unsupported(config, field, scalar))
        }
        _ => Ok(()),
    }
}

fn unsupported(config: &HfConfig, field: &'static str, found: impl ToString) -> Error {
    Error::UnsupportedSetting {
        path: config.path.clone(),
        field,
        found: found.to_string(),
    }
}

/// The part of [`check`] for scaled RoPE.
fn check_rope(arch: &ArchSpec, config: &HfConfig) -> Result<Option<Note>, Error> {
    let rope = &config.rope;
    match rope.str(&["rope_type"])?.as_deref() {
        None | Some("default") => {}
        Some("linear") => _ = rope.need_f64("factor")?,
        Some("yarn") => {
            rope.need_f64("factor")?;
            let truncate = rope.bool(&["truncate"])?.unwrap_or(true);
            if truncate != yarn_whole_pairs(arch.name) {
                return Err(unsupported(config, "rope_parameters.truncate", truncate));
            }
            let number = |field| Ok(rope.f64(&[field])?.unwrap_or(0.0));
            let (mscale, all_dim) = (number("mscale")?, number("mscale_all_dim")?);
            // One key stands for both numbers, if the architecture has it.
            let has_key = own_keys(arch).any(|key| key.name == keys::YARN_LOG_MULTIPLIER);
            if all_dim != 0.0 && (mscale != all_dim && has_key || mscale != 0.0 && !has_key) {
                return Err(unsupported(config, "rope_parameters.mscale", mscale));
            }
        }
        Some("llama3") if arch.rows().any(|row| row.gguf == ROPE_FREQS) => {}
        // Their factors are tensors, which these architectures do not have.
        Some(found @ ("llama3" | "longrope" | "su")) => {
            return Err(unsupported(config, "rope_type", found));
        }
        Some(found) => {
            let found = found.to_owned();
            return Ok(Some(Note::RopeType { found }));
        }
    }
    Ok(None)
}

/// A 32-bit key from the first of these fields that is present.
macro_rules! u32_key {
    ($name:expr, $($field:literal)|+) => {
        Key {
            name: $name,
            value: |m| Ok(m.config.fields.u32(&[$($field),+])?.map(Value::U32)),
        }
    };
}

/// A floating-point key from the first of these RoPE parameters, for one RoPE type.
macro_rules! yarn_key {
    ($name:expr, $($field:literal)|+) => {
        Key {
            name: $name,
            value: |m| match scaling(m)? {
                Some("yarn") => float(m.config.rope.f64(&[$($field),+])?),
                _ => Ok(None),
            },
        }
    };
}

const COMMON: &[Key] = &[
    Key {
        name: keys::BLOCK_COUNT,
        value: |m| {
            let n_layer = m.config.fields.need_u32("num_hidden_layers")?;
            Ok(Some(n_layer.saturating_add(m.n_mtp).into()))
        },
    },
    u32_key!(
        keys::CONTEXT_LENGTH,
        "max_position_embeddings"
            | "n_ctx"
            | "n_positions"
            | "max_length"
            | "max_sequence_length"
            | "model_max_length"
    ),
    u32_key!(keys::EMBEDDING_LENGTH, "hidden_size" | "n_embd" | "dim"),
    u32_key!(
        keys::FEED_FORWARD_LENGTH,
        "intermediate_size" | "n_inner" | "hidden_dim"
    ),
    u32_key!(
        keys::HEAD_COUNT,
        "num_attention_heads" | "n_head" | "n_heads"
    ),
    u32_key!(keys::HEAD_COUNT_KV, "num_key_value_heads" | "n_kv_heads"),
    Key {
        name: "attention.causal",
        value: |m| {
            let causal = m.config.fields.bool(&["is_causal"])?;
            Ok((causal == Some(false)).then_some(false.into()))
        },
    },
    Key {
        name: keys::ROPE_SCALING_TYPE,
        value: |m| Ok(scaling(m)?.map(Value::from)),
    },
    Key {
        name: keys::ROPE_SCALING_FACTOR,
        value: |m| match scaling(m)? {
            Some("linear" | "yarn") => float(m.config.rope.f64(&["factor"])?),
            _ => Ok(None),
        },
    },
    Key {
        name: keys::ROPE_SCALING_ORIGINAL_CONTEXT,
        value: |m| match scaling(m)? {
            Some("yarn") => {
                let n_ctx = m.config.rope.need_u32("original_max_position_embeddings")?;
                Ok(Some(n_ctx.into()))
            }
            _ => Ok(None),
        },
    },
    yarn_key!(keys::YARN_EXT_FACTOR, "extrapolation_factor"),
    yarn_key!(keys::YARN_ATTN_FACTOR, "attention_factor" | "attn_factor"),
    yarn_key!(keys::YARN_BETA_FAST, "beta_fast"),
    yarn_key!(keys::YARN_BETA_SLOW, "beta_slow"),
    Key {
        name: keys::ROPE_DIMENSION_SECTIONS,
        value: |m| {
            let sections = m.config.rope.i32s(&["mrope_section"])?;
            Ok(sections.map(|mut sections| {
                sections.resize(N_SECTIONS, 0);
                sections.into()
            }))
        },
    },
    Key {
        name: keys::ROPE_FREQ_BASE,
        value: |m| float(m.config.rope.f64(&["rope_theta"])?),
    },
    Key {
        name: keys::ROPE_FREQ_BASE_SWA,
        value: |m| float(m.config.rope.f64(&[SLIDING_THETA])?),
    },
    Key {
        name: keys::RMS_EPSILON,
        value: |m| float(m.config.fields.f64(&["rms_norm_eps", "norm_eps"])?),
    },
    u32_key!(
        keys::EXPERT_COUNT,
        "num_local_experts" | "num_experts" | "n_routed_experts"
    ),
    u32_key!(
        keys::EXPERT_USED_COUNT,
        "num_experts_per_tok" | "num_experts_per_token" | "top_k_experts"
    ),
    u32_key!(keys::EXPERT_GROUP_COUNT, "n_group"),
    u32_key!(keys::EXPERT_GROUP_USED_COUNT, "topk_group"),
    Key {
        name: keys::EXPERT_GATING_FUNC,
        value: gating,
    },
    u32_key!(keys::KEY_LENGTH, "head_dim"),
    u32_key!(keys::VALUE_LENGTH, "head_dim"),
    Key {
        name: keys::FILE_TYPE,
        value: |m| Ok(Some(m.file_type.id.into())),
    },
];

/// Axes of M-RoPE: time, height, width, and a spare one.
const N_SECTIONS: usize = 4;

/// Keys of llama.cpp's Llama converter, which also converts drafts.
const LLAMA: &[Key] = &[
    Key {
        name: keys::VOCAB_SIZE,
        value: |m| Ok(Some(m.config.fields.need_u32("vocab_size")?.into())),
    },
    Key {
        name: keys::ROPE_DIMENSION_COUNT,
        value: |m| Ok(head_dim(m)?.map(Value::U32)),
    },
];

const ARCHS: &[ArchKeys] = &[
    ArchKeys {
        arch: "llama",
        keys: &[LLAMA],
    },
    ArchKeys {
        arch: "deepseek2",
        keys: &[DEEPSEEK],
    },
    ArchKeys {
        arch: "eagle3",
        keys: &[LLAMA],
    },
    ArchKeys {
        arch: "gemma3",
        keys: &[SOFTCAP, WINDOW],
    },
    ArchKeys {
        arch: "glm4moe",
        keys: &[GLM],
    },
    ArchKeys {
        arch: "gpt-oss",
        keys: &[WINDOW, GPT_OSS],
    },
    ArchKeys {
        arch: "qwen3moe",
        keys: &[EXPERT_WIDTHS],
    },
    ArchKeys {
        arch: "qwen3next",
        keys: &[EXPERT_WIDTHS, HYBRID],
    },
    ArchKeys {
        arch: "qwen35",
        keys: &[HYBRID, SECTIONS],
    },
    ArchKeys {
        arch: "qwen35moe",
        keys: &[EXPERT_WIDTHS, HYBRID, SECTIONS],
    },
];

/// Widths of routed and shared experts.
const EXPERT_WIDTHS: &[Key] = &[
    u32_key!(keys::EXPERT_FEED_FORWARD_LENGTH, "moe_intermediate_size"),
    u32_key!(
        keys::EXPERT_SHARED_FEED_FORWARD_LENGTH,
        "shared_expert_intermediate_size"
    ),
];

/// The width of experts if there are no dense layers.
const GPT_OSS: &[Key] = &[u32_key!(
    keys::EXPERT_FEED_FORWARD_LENGTH,
    "intermediate_size"
)];

/// Soft capping of logits.
const SOFTCAP: &[Key] = &[Key {
    name: keys::FINAL_LOGIT_SOFTCAPPING,
    value: |m| {
        let cap = m.config.fields.f64(&["final_logit_softcapping"])?;
        float(cap.filter(|&cap| cap != 0.0))
    },
}];

/// Sliding-window attention.
const WINDOW: &[Key] = &[
    Key {
        name: keys::SLIDING_WINDOW,
        value: |m| {
            let window = m.config.fields.u32(&["sliding_window"])?;
            let never = window_layers(m)?.is_some_and(|layers| !layers.contains(&true));
            Ok(window.filter(|_| !never).map(Value::U32))
        },
    },
    // Readers know the pattern of the architecture, but some models differ.
    Key {
        name: keys::SLIDING_WINDOW_PATTERN,
        value: |m| {
            let Some(mut layers) = window_layers(m)? else {
                return Ok(None);
            };
            let usual = m
                .arch
                .window
                .as_ref()
                .map(|w| w.layers(layers.len() as u32));
            if Some(&layers) == usual.as_ref() || !layers.contains(&true) {
                return Ok(None);
            }
            layers.extend((0..m.n_mtp).map(|_| false));
            Ok(Some(layers.into()))
        },
    },
];

/// Multi-head latent attention, experts after dense layers, an MTP head. All heads read the same cache row,
/// so common keys about KV heads are overridden.
const DEEPSEEK: &[Key] = &[
    Key {
        name: keys::HEAD_COUNT_KV,
        value: |_| Ok(Some(1u32.into())),
    },
    u32_key!(keys::LEADING_DENSE_BLOCK_COUNT, "first_k_dense_replace"),
    u32_key!(keys::VOCAB_SIZE, "vocab_size"),
    u32_key!(keys::Q_LORA_RANK, "q_lora_rank"),
    u32_key!(keys::KV_LORA_RANK, "kv_lora_rank"),
    Key {
        name: keys::KEY_LENGTH,
        value: |m| sum(m, ["kv_lora_rank", "qk_rope_head_dim"]),
    },
    u32_key!(keys::VALUE_LENGTH, "kv_lora_rank"),
    Key {
        name: keys::KEY_LENGTH_MLA,
        value: |m| sum(m, ["qk_nope_head_dim", "qk_rope_head_dim"]),
    },
    u32_key!(keys::VALUE_LENGTH_MLA, "v_head_dim"),
    u32_key!(
        keys::EXPERT_FEED_FORWARD_LENGTH,
        "moe_intermediate_size" | "intermediate_size"
    ),
    u32_key!(keys::EXPERT_COUNT, "n_routed_experts"),
    Key {
        name: keys::EXPERT_SHARED_COUNT,
        value: |m| {
            let n_shared = m.config.fields.u32(&["n_shared_experts"])?;
            Ok(Some(n_shared.unwrap_or(0).into()))
        },
    },
    WEIGHTS_SCALE,
    Key {
        name: keys::EXPERT_WEIGHTS_NORM,
        value: |m| {
            let normalised = m.config.fields.bool(&["norm_topk_prob"])?;
            Ok((normalised == Some(true)).then_some(true.into()))
        },
    },
    u32_key!(keys::ROPE_DIMENSION_COUNT, "qk_rope_head_dim"),
    Key {
        name: keys::YARN_LOG_MULTIPLIER,
        value: |m| float(m.config.rope.f64(&["mscale_all_dim"])?.map(|x| 0.1 * x)),
    },
    NEXTN,
];

const WEIGHTS_SCALE: Key = Key {
    name: keys::EXPERT_WEIGHTS_SCALE,
    value: |m| float(m.config.fields.f64(&["routed_scaling_factor"])?),
};

/// Returns the sum of two fields.
fn sum(m: &Model<'_>, names: [&str; 2]) -> Result<Option<Value>, Error> {
    let [a, b] = names.map(|name| m.config.fields.need_u32(name));
    Ok(Some(a?.saturating_add(b?).into()))
}

/// Partially rotated heads, experts after dense layers, an MTP head.
const GLM: &[Key] = &[
    Key {
        name: keys::ROPE_DIMENSION_COUNT,
        value: |m| rotated_part(m, 0.5),
    },
    u32_key!(keys::EXPERT_FEED_FORWARD_LENGTH, "moe_intermediate_size"),
    u32_key!(keys::EXPERT_SHARED_COUNT, "n_shared_experts"),
    u32_key!(keys::LEADING_DENSE_BLOCK_COUNT, "first_k_dense_replace"),
    Key {
        name: keys::EXPERT_GATING_FUNC,
        value: |_| Ok(Some(SIGMOID.into())),
    },
    WEIGHTS_SCALE,
    Key {
        name: keys::EXPERT_WEIGHTS_NORM,
        value: |m| Ok(m.config.fields.bool(&["norm_topk_prob"])?.map(Value::from)),
    },
    NEXTN,
];

const NEXTN: Key = Key {
    name: keys::NEXTN_PREDICT_LAYERS,
    value: |m| Ok((m.n_mtp > 0).then_some(m.n_mtp.into())),
};

/// MTP head and recurrent layers of the Qwen family.
const HYBRID: &[Key] = &[
    NEXTN,
    u32_key!(keys::SSM_CONV_KERNEL, "linear_conv_kernel_dim"),
    u32_key!(keys::SSM_STATE_SIZE, "linear_key_head_dim"),
    u32_key!(keys::SSM_GROUP_COUNT, "linear_num_key_heads"),
    u32_key!(keys::SSM_TIME_STEP_RANK, "linear_num_value_heads"),
    Key {
        name: keys::SSM_INNER_SIZE,
        value: |m| {
            let width = m.config.fields.need_u32("linear_value_head_dim")?;
            let n_head = m.config.fields.need_u32("linear_num_value_heads")?;
            Ok(Some(width.saturating_mul(n_head).into()))
        },
    },
    Key {
        name: keys::RECURRENT_LAYERS,
        value: recurrent_layers,
    },
    Key {
        name: keys::FULL_ATTENTION_INTERVAL,
        value: |m| Ok(Some(full_attention_interval(m)?.into())),
    },
    Key {
        name: keys::ROPE_DIMENSION_COUNT,
        value: |m| rotated_part(m, 0.25),
    },
];

/// M-RoPE of the Qwen family.
const SECTIONS: &[Key] = &[Key {
    // Readers require the key, so a config without sections gets the family's default.
    name: keys::ROPE_DIMENSION_SECTIONS,
    value: |m| {
        let given = m.config.rope.i32s(&["mrope_section"])?;
        Ok(given.is_none().then(|| vec![11, 11, 10, 0].into()))
    },
}];

/// `expert_gating_func`: softmax over all experts.
const SOFTMAX: u32 = 1;
/// `expert_gating_func`: sigmoid of each expert's logit.
const SIGMOID: u32 = 2;

/// Returns the gating function, from any of the names that configs use.
fn gating(m: &Model<'_>) -> Result<Option<Value>, Error> {
    let names = [
        "score_function",
        "scoring_func",
        "score_func",
        "moe_router_activation",
        "moe_router_activation_func",
        "expert_selection_fn",
    ];
    let id: u32 = match m.config.fields.str(&names)?.as_deref() {
        None => return Ok(None),
        Some("softmax") => SOFTMAX,
        Some("sigmoid") => SIGMOID,
        Some(found) => {
            return Err(unsupported(m.config, "scoring_func", found));
        }
    };
    Ok(Some(id.into()))
}

fn float(value: Option<f64>) -> Result<Option<Value>, Error> {
    Ok(value.map(|value| Value::F32(value as f32)))
}

/// Returns `rope.scaling.type`, for the RoPE types that have one.
fn scaling(m: &Model<'_>) -> Result<Option<&'static str>, Error> {
    let rope = &m.config.rope;
    let has_factor = rope.f64(&["factor"])?.is_some();
    Ok(match rope.str(&["rope_type"])?.as_deref() {
        Some("linear") if has_factor => Some("linear"),
        Some("yarn") if has_factor => Some("yarn"),
        _ => None,
    })
}

/// Returns the head dimension: given, or hidden size divided by heads.
fn head_dim(m: &Model<'_>) -> Result<Option<u32>, Error> {
    let fields = &m.config.fields;
    if let Some(width) = fields.u32(&["head_dim"])? {
        return Ok(Some(width));
    }
    let n_embd = fields.need_u32("hidden_size")?;
    Ok(n_embd.checked_div(fields.need_u32("num_attention_heads")?))
}

/// Returns the number of rotated elements per head, from the config's fraction.
fn rotated_part(m: &Model<'_>, default: f64) -> Result<Option<Value>, Error> {
    let part = m.config.rope.f64(&["partial_rotary_factor"])?;
    let part = part.unwrap_or(default);
    Ok(head_dim(m)?.map(|width| ((f64::from(width) * part) as u32).into()))
}

fn full_attention_interval(m: &Model<'_>) -> Result<u32, Error> {
    let interval = m.config.fields.u32(&["full_attention_interval"])?;
    Ok(interval.unwrap_or(4))
}

/// Returns which trunk layers are of a kind, by the config's list.
fn layers_of_kind(m: &Model<'_>, kind: &str) -> Result<Option<Vec<bool>>, Error> {
    let fields = &m.config.fields;
    let n_layer = fields.need_u32("num_hidden_layers")?;
    match fields.strings(&["layer_types"])? {
        Some(kinds) if kinds.len() != n_layer as usize => Err(Error::Field {
            path: m.config.path.clone(),
            field: "layer_types".to_owned(),
            expected: format!("an entry for each of {n_layer} layers"),
            found: format!("{} entries", kinds.len()),
        }),
        kinds => Ok(kinds.map(|kinds| kinds.iter().map(|layer| layer == kind).collect())),
    }
}

/// Returns `n_layer` flags, false for every `interval`-th layer.
fn all_but_every(interval: u32, n_layer: u32) -> Vec<bool> {
    (1..=n_layer.min(MAX_LAYERS))
        .map(|i| !i.is_multiple_of(interval.max(1)))
        .collect()
}

/// Returns which layers are recurrent: by the config's list of kinds, or all but every few. MTP layers
/// never are.
fn recurrent_layers(m: &Model<'_>) -> Result<Option<Value>, Error> {
    let n_layer = m.config.fields.need_u32("num_hidden_layers")?;
    let mut recurrent = match layers_of_kind(m, "linear_attention")? {
        Some(layers) => layers,
        None => all_but_every(full_attention_interval(m)?, n_layer),
    };
    recurrent.extend((0..m.n_mtp).map(|_| false));
    Ok(Some(recurrent.into()))
}

/// Returns which trunk layers have a sliding window: by the config's list of kinds, or all but every few;
/// `None` if the config leaves it to the architecture.
fn window_layers(m: &Model<'_>) -> Result<Option<Vec<bool>>, Error> {
    if let Some(layers) = layers_of_kind(m, "sliding_attention")? {
        return Ok(Some(layers));
    }
    let fields = &m.config.fields;
    let n_layer = fields.need_u32("num_hidden_layers")?;
    let interval = fields.u32(&["sliding_window_pattern", "_sliding_window_pattern"])?;
    Ok(interval.map(|interval| all_but_every(interval, n_layer)))
}

/// Upper limit of the number of layers, against oversized lists from broken configs.
const MAX_LAYERS: u32 = 1 << 16;
