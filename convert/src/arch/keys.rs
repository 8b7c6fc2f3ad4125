//! Metadata keys and the config fields that they come from: the keys of every text model, and groups that
//! several architectures share.

use schemas::arch::{ArchSpec, Gating, keys};
use schemas::gguf::{Metadata, Value};

use crate::config::FileType;
use crate::error::Error;
use crate::hf_config::{HfConfig, SLIDING_THETA};

use super::defaults::Defaults;

/// Conversion of an architecture: the keys that it adds, and the defaults of its configs.
pub(crate) struct HfArch {
    /// `general.architecture`.
    pub(crate) name: &'static str,
    /// Keys after those of every text model, in file order. Later values replace earlier ones.
    pub(crate) keys: &'static [&'static [Key]],
    /// Keys of every text model that llama.cpp's converter does not write, or writes later.
    pub(crate) without: &'static [&'static str],
    /// Defaults of absent config fields per model type; the first are those of unknown model types.
    pub(crate) defaults: &'static [Defaults],
    /// Checks settings that only this architecture has.
    pub(crate) check: fn(&HfConfig) -> Result<(), Error>,
    /// GGUF names of tensors whose rows FP8 checkpoints store in another order.
    pub(crate) sharded: &'static [&'static str],
    /// True if llama.cpp's converter writes stacks of experts in the order of the table; false if sorted by
    /// name.
    pub(crate) experts_in_table_order: bool,
    /// True if full attention rotates the first part of each head's pairs, and the vocabulary is BPE on
    /// characters with merges.
    pub(crate) gemma4_layout: bool,
    /// True if vocabularies follow two special rules of llama.cpp's Llama converter. Byte-level readers
    /// ignore the one about spaces, and behave the same without the one about added tokens.
    pub(crate) llama_vocab_rules: bool,
    /// Pre-tokenizer of vocabularies that are stored as tiktoken ranks, whose patterns are in the Python code
    /// of the checkpoint; `None` if such vocabularies are not supported.
    pub(crate) ranks_pre: Option<&'static str>,
    /// Classes whose MTP heads llama.cpp's converter leaves out.
    pub(crate) headless_classes: &'static [&'static str],
    /// False if attention has no positions, so that absent RoPE parameters have no defaults.
    pub(crate) has_positions: bool,
    /// Returns true if a config is of this architecture and not of another with the same class.
    pub(crate) matches: fn(&HfConfig) -> bool,
    /// Returns true for a tensor of the text model that readers do not use, which is left out.
    pub(crate) is_unread: fn(&HfConfig, &str) -> bool,
    /// Groups of GGUF names after `blk.N.` that llama.cpp's converter writes before all other tensors: group by group, each
    /// in the order of blocks.
    pub(crate) leading: &'static [&'static [&'static str]],
    /// True if matrices keep the types of the checkpoint, whatever the type of the file: F32, BF16, and Q8_0 for FP8.
    pub(crate) keeps_types: bool,
    /// True if llama.cpp's converter writes the chat template before all other keys.
    pub(crate) template_first: bool,
    /// True if a head can only be a sidecar, because readers use one mixer of streams for it and the trunk.
    pub(crate) sidecar_only: bool,
    /// Conversion of the DSpark draft that checkpoints of the same class may have, with its tensors.
    pub(crate) dspark: Option<(&'static ArchSpec, &'static HfArch)>,
}

impl HfArch {
    /// Values of most architectures.
    pub(super) const PLAIN: HfArch = HfArch {
        name: "",
        keys: &[],
        without: &[],
        defaults: &[],
        check: |_| Ok(()),
        sharded: &[],
        experts_in_table_order: false,
        gemma4_layout: false,
        llama_vocab_rules: false,
        ranks_pre: None,
        headless_classes: &[],
        has_positions: true,
        matches: |_| true,
        is_unread: |_, _| false,
        leading: &[],
        keeps_types: false,
        template_first: false,
        sidecar_only: false,
        dspark: None,
    };

    /// Returns true if the architecture has a key of this name in addition to those of every text model.
    pub(super) fn has_key(&self, name: &str) -> bool {
        let mut keys = self.keys.iter().copied().flatten();
        keys.any(|key| key.name == name)
    }
}

/// The inputs that keys are computed from.
pub(crate) struct Model<'a> {
    pub(crate) arch: &'static ArchSpec,
    pub(crate) hf_arch: &'static HfArch,
    pub(crate) config: &'a HfConfig,
    /// The target's config, for a draft.
    pub(crate) target: Option<&'a HfConfig>,
    /// True if the checkpoint has the confidence head of a draft.
    pub(crate) has_confidence_head: bool,
    /// True if the checkpoint has clusters of tokens.
    pub(crate) has_centroids: bool,
    /// MTP layers in the file.
    pub(crate) n_mtp: u32,
    pub(crate) file_type: FileType,
}

/// A metadata key; without a value, the file does not have it.
pub(crate) struct Key {
    /// Name after `{arch}.`, or `general.file_type`.
    pub(super) name: &'static str,
    value: KeyValue,
}

/// The source of a key's value.
enum KeyValue {
    /// A 32-bit integer: the first of these config fields that is present.
    U32(&'static [&'static str]),
    /// A floating-point number: the first of these RoPE parameters that is present, if RoPE is scaled by
    /// YaRN.
    Yarn(&'static [&'static str]),
    /// Computed from the model.
    Computed(Compute),
    /// Computed from one of the config's fields.
    ComputedFrom(&'static str, ComputeFrom),
}

type Compute = fn(&Model<'_>) -> Result<Option<Value>, Error>;
type ComputeFrom = fn(&Model<'_>, &str) -> Result<Option<Value>, Error>;

/// A 32-bit key from the first of these fields that is present.
pub(super) const fn u32_key(name: &'static str, fields: &'static [&'static str]) -> Key {
    Key {
        name,
        value: KeyValue::U32(fields),
    }
}

const fn yarn_key(name: &'static str, fields: &'static [&'static str]) -> Key {
    Key {
        name,
        value: KeyValue::Yarn(fields),
    }
}

/// A key whose value is computed from the model.
pub(super) const fn computed(name: &'static str, value: Compute) -> Key {
    Key {
        name,
        value: KeyValue::Computed(value),
    }
}

/// A key whose value is computed from a field, in any of its places.
pub(super) const fn computed_from(
    name: &'static str,
    field: &'static str,
    value: ComputeFrom,
) -> Key {
    Key {
        name,
        value: KeyValue::ComputedFrom(field, value),
    }
}

impl Key {
    fn value(&self, model: &Model<'_>) -> Result<Option<Value>, Error> {
        let config = model.config;
        match self.value {
            KeyValue::U32(fields) => Ok(config.fields.u32(fields)?.map(Value::U32)),
            KeyValue::Yarn(fields) => match scaling(model)? {
                Some("yarn") => float(config.rope.f64(fields)?),
                _ => Ok(None),
            },
            KeyValue::Computed(compute) => compute(model),
            KeyValue::ComputedFrom(field, compute) => compute(model, field),
        }
    }
}

/// Returns the architecture's keys, including `general.file_type`.
pub(crate) fn metadata(model: &Model<'_>) -> Result<Metadata, Error> {
    let arch = model.arch;
    let mut metadata = Metadata::new();
    let hf_arch = model.hf_arch;
    let common = COMMON
        .iter()
        .filter(|key| !hf_arch.without.contains(&key.name));
    for key in common.chain(hf_arch.keys.iter().copied().flatten()) {
        if let Some(value) = key.value(model)? {
            let name = match key.name {
                keys::FILE_TYPE => keys::FILE_TYPE.to_owned(),
                suffix => format!("{}.{suffix}", arch.name),
            };
            metadata.set(name, value);
        }
    }
    Ok(metadata)
}

/// Keys of every text model.
const COMMON: &[Key] = &[
    computed(keys::BLOCK_COUNT, |m| {
        let n_layer = m.config.fields.need_u32("num_hidden_layers")?;
        Ok(Some(n_layer.saturating_add(m.n_mtp).into()))
    }),
    u32_key(
        keys::CONTEXT_LENGTH,
        &[
            "max_position_embeddings",
            "n_ctx",
            "n_positions",
            "max_length",
            "max_sequence_length",
            "model_max_length",
        ],
    ),
    u32_key(keys::EMBEDDING_LENGTH, &["hidden_size", "n_embd", "dim"]),
    u32_key(
        keys::FEED_FORWARD_LENGTH,
        &["intermediate_size", "n_inner", "hidden_dim"],
    ),
    u32_key(
        keys::HEAD_COUNT,
        &["num_attention_heads", "n_head", "n_heads"],
    ),
    u32_key(keys::HEAD_COUNT_KV, &["num_key_value_heads", "n_kv_heads"]),
    computed("attention.causal", |m| {
        let causal = m.config.fields.bool(&["is_causal"])?;
        Ok((causal == Some(false)).then_some(false.into()))
    }),
    computed(
        keys::ROPE_SCALING_TYPE,
        |m| Ok(scaling(m)?.map(Value::from)),
    ),
    computed(keys::ROPE_SCALING_FACTOR, |m| match scaling(m)? {
        Some("linear" | "yarn") => float(m.config.rope.f64(&["factor"])?),
        _ => Ok(None),
    }),
    computed(keys::ROPE_SCALING_ORIGINAL_CONTEXT, |m| match scaling(m)? {
        Some("yarn") => {
            let n_ctx = m.config.rope.need_u32("original_max_position_embeddings")?;
            Ok(Some(n_ctx.into()))
        }
        _ => Ok(None),
    }),
    yarn_key(keys::YARN_EXT_FACTOR, &["extrapolation_factor"]),
    yarn_key(keys::YARN_ATTN_FACTOR, &["attention_factor", "attn_factor"]),
    yarn_key(keys::YARN_BETA_FAST, &["beta_fast"]),
    yarn_key(keys::YARN_BETA_SLOW, &["beta_slow"]),
    computed(keys::ROPE_DIMENSION_SECTIONS, |m| {
        let sections = m.config.rope.i32s(&["mrope_section"])?;
        Ok(sections.map(|mut sections| {
            sections.resize(N_SECTIONS, 0);
            sections.into()
        }))
    }),
    computed(keys::ROPE_FREQ_BASE, |m| {
        float(m.config.rope.f64(&["rope_theta"])?)
    }),
    computed(keys::ROPE_FREQ_BASE_SWA, |m| {
        float(m.config.rope.f64(&[SLIDING_THETA])?)
    }),
    computed(keys::RMS_EPSILON, |m| {
        float(m.config.fields.f64(&["rms_norm_eps", "norm_eps"])?)
    }),
    computed(keys::LAYER_NORM_EPSILON, |m| {
        let fields = ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];
        float(m.config.fields.f64(&fields)?)
    }),
    u32_key(
        keys::EXPERT_COUNT,
        &["num_local_experts", "num_experts", "n_routed_experts"],
    ),
    u32_key(
        keys::EXPERT_USED_COUNT,
        &[
            "num_experts_per_tok",
            "num_experts_per_token",
            "top_k_experts",
        ],
    ),
    u32_key(keys::EXPERT_GROUP_COUNT, &["n_group"]),
    u32_key(keys::EXPERT_GROUP_USED_COUNT, &["topk_group"]),
    computed(keys::EXPERT_GATING_FUNC, gating),
    u32_key(keys::KEY_LENGTH, &["head_dim"]),
    u32_key(keys::VALUE_LENGTH, &["head_dim"]),
    computed(keys::FILE_TYPE, |m| Ok(Some(m.file_type.id.into()))),
];

/// Axes of M-RoPE: time, height, width, and a spare one.
const N_SECTIONS: usize = 4;

/// Keys of llama.cpp's Llama converter, which also converts drafts.
pub(super) const LLAMA_KEYS: &[Key] = &[
    computed(keys::VOCAB_SIZE, |m| {
        Ok(Some(m.config.fields.need_u32("vocab_size")?.into()))
    }),
    computed(keys::ROPE_DIMENSION_COUNT, |m| {
        Ok(head_dim(m)?.map(Value::U32))
    }),
];

/// Widths of routed and shared experts.
pub(super) const EXPERT_WIDTHS: &[Key] = &[
    u32_key(keys::EXPERT_FEED_FORWARD_LENGTH, &["moe_intermediate_size"]),
    u32_key(
        keys::EXPERT_SHARED_FEED_FORWARD_LENGTH,
        &["shared_expert_intermediate_size"],
    ),
];

/// Sliding-window attention.
pub(super) const WINDOW: &[Key] = &[
    computed(keys::SLIDING_WINDOW, |m| {
        let window = m.config.fields.u32(&["sliding_window"])?;
        let never = window_layers(m)?.is_some_and(|layers| !layers.contains(&true));
        Ok(window.filter(|_| !never).map(Value::U32))
    }),
    // Readers know the pattern of the architecture, but some models differ.
    computed(keys::SLIDING_WINDOW_PATTERN, |m| {
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
    }),
];

/// Factor on the weights of experts.
pub(super) const WEIGHTS_SCALE: Key = computed(keys::EXPERT_WEIGHTS_SCALE, |m| {
    float(m.config.fields.f64(&["routed_scaling_factor"])?)
});

/// The number of MTP layers, if there are any.
pub(super) const NEXTN: Key = computed(keys::NEXTN_PREDICT_LAYERS, |m| {
    Ok((m.n_mtp > 0).then_some(m.n_mtp.into()))
});

/// `expert_gating_func`: softmax over all experts.
const SOFTMAX: u32 = 1;

/// `expert_gating_func`: sigmoid of each expert's logit.
pub(super) const SIGMOID: u32 = 2;

/// `expert_gating_func`: square root of the softplus of each expert's logit.
const SQRT_SOFTPLUS: u32 = 4;

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
        Some("sqrtsoftplus") if m.arch.routing.gating == Gating::SqrtSoftplus => SQRT_SOFTPLUS,
        Some(found) => {
            return Err(m.config.unsupported("scoring_func", found));
        }
    };
    Ok(Some(id.into()))
}

/// Returns the value of a floating-point key.
pub(super) fn float(value: Option<f64>) -> Result<Option<Value>, Error> {
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
pub(super) fn head_dim(m: &Model<'_>) -> Result<Option<u32>, Error> {
    let fields = &m.config.fields;
    if let Some(width) = fields.u32(&["head_dim"])? {
        return Ok(Some(width));
    }
    let n_embd = fields.need_u32("hidden_size")?;
    Ok(n_embd.checked_div(fields.need_u32("num_attention_heads")?))
}

/// Returns the number of rotated elements per head, from the config's fraction.
pub(super) fn rotated_part(m: &Model<'_>, default: f64) -> Result<Option<Value>, Error> {
    let part = m.config.rope.f64(&["partial_rotary_factor"])?;
    let part = part.unwrap_or(default);
    Ok(head_dim(m)?.map(|width| ((f64::from(width) * part) as u32).into()))
}

/// Returns which trunk layers are of a kind, by the config's list.
pub(super) fn layers_of_kind(m: &Model<'_>, kind: &str) -> Result<Option<Vec<bool>>, Error> {
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
pub(super) fn all_but_every(interval: u32, n_layer: u32) -> Vec<bool> {
    (1..=n_layer.min(MAX_LAYERS))
        .map(|i| !i.is_multiple_of(interval.max(1)))
        .collect()
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
