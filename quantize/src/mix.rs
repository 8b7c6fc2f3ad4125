//! The quantization mix: the rules by which `llama-quantize` chooses a tensor's type from its name
//! and shape.
//!
//! Some rules count the tensors before, so tensors must be processed in the order of the output
//! file.

use schemas::arch::keys;
use schemas::gguf::{DType, KeyError, Metadata, Tensor};

use crate::config::QuantizeConfig;
use crate::error::Error;
use crate::ftype::FType;
use crate::prune::Item;
use crate::rule::TypeRule;

/// Parts of the names of tensors that keep the source's type: small, sensitive weights and position
/// embeddings.
const KEPT_PARTS: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Full names of tensors that keep the source's type.
const KEPT_NAMES: &[&str] = &["position_embd.weight", "token_types.weight"];

/// Parts of the names of tensors that keep the source's type in glm5-next only.
const KEPT_PARTS_GLM5_NEXT: &[&str] = &[
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Parts of the names of tensors that get Q8_0 in glm5-next.
const Q8_0_PARTS_GLM5_NEXT: &[&str] = &["attn_q_a", "attn_q_b", "nextn.eh_proj"];

/// Function of a tensor, as far as its type depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Output,
    Embedding,
    /// V projections, separate or fused with Q and K.
    Value,
    Key,
    Query,
    AttnOutput,
    FfnUp,
    /// Gate projections, separate or fused with up projections.
    FfnGate,
    FfnDown,
    Other,
}

/// Roles by a part of the name; the first match counts.
const ROLES: &[(&str, Role)] = &[
    ("attn_qkv.weight", Role::Value),
    ("attn_kv_b.weight", Role::Value),
    ("attn_v.weight", Role::Value),
    ("attn_k.weight", Role::Key),
    ("attn_q.weight", Role::Query),
    ("attn_output.weight", Role::AttnOutput),
    ("ffn_up", Role::FfnUp),
    ("ffn_gate", Role::FfnGate),
    ("ffn_down", Role::FfnDown),
];

impl Role {
    fn of(name: &str) -> Role {
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
            _ => {
                let mut roles = ROLES.iter();
                let found = roles.find(|(part, _)| name.contains(part));
                found.map_or(Role::Other, |&(_, role)| role)
            }
        }
    }
}

/// Properties of a model that types depend on, and counts of the tensors decided so far.
pub(crate) struct Mix<'a> {
    config: &'a QuantizeConfig,
    arch: &'a str,
    /// Number of layers, including MTP layers: they shift the mix's bounds for the trunk, as in
    /// llama.cpp.
    n_layer: u32,
    /// Number of MTP layers, which are the last ones.
    n_mtp: u32,
    n_expert: u32,
    /// Query heads per key-value head in the first layer; 0 if it has no key-value heads.
    n_gqa: u32,
    is_70b: bool,
    is_tied: bool,
    n_value: u32,
    /// Tensors of these roles decided so far.
    i_value: u32,
    i_up: u32,
    i_gate: u32,
    i_down: u32,
}

/// The type of a tensor and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) dtype: DType,
    /// The preferred type, if the row length is not a multiple of its block length.
    pub(crate) unfit: Option<DType>,
    pub(crate) by: Reason,
}

/// The reason for a tensor's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Such tensors are never quantized, or the whole file is copied.
    Kept,
    /// The configured type of the output or the embeddings.
    Role,
    /// The rule with this pattern.
    Rule(String),
    /// The configured type of the MTP head.
    Mtp,
    /// One type for all weights, without a mix.
    Pure,
    /// The mix of the file type.
    Mix,
}

impl<'a> Mix<'a> {
    /// Reads the model's keys and counts its tensors.
    pub(crate) fn new(
        config: &'a QuantizeConfig,
        metadata: &'a Metadata,
        items: &[Item],
    ) -> Result<Mix<'a>, KeyError> {
        let arch = metadata.need_str(keys::ARCHITECTURE)?;
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let n_layer = metadata.need_u32(&key(keys::BLOCK_COUNT))?;
        let n_mtp = metadata.u32(&key(keys::NEXTN_PREDICT_LAYERS))?.unwrap_or(0);
        let n_expert = metadata.u32(&key(keys::EXPERT_COUNT))?.unwrap_or(0);
        let n_head = first_layer(metadata, &key(keys::HEAD_COUNT))?.unwrap_or(0);
        let n_head_kv = first_layer(metadata, &key(keys::HEAD_COUNT_KV))?.unwrap_or(n_head);
        let n_trunk = n_layer.saturating_sub(n_mtp);
        let is_70b = match arch {
            "llama" => n_trunk == 80 && n_head != n_head_kv && n_expert != 8,
            "qwen2" | "deci" | "olmo" => n_trunk == 80,
            "jais2" => n_trunk == 68,
            _ => false,
        };
        let roles = || items.iter().map(|item| Role::of(&item.tensor.name));
        Ok(Mix {
            config,
            arch,
            n_layer,
            n_mtp,
            n_expert,
            n_gqa: n_head.checked_div(n_head_kv).unwrap_or(0),
            is_70b,
            is_tied: !roles().any(|role| role == Role::Output),
            n_value: roles().filter(|&role| role == Role::Value).count() as u32,
            i_value: 0,
            i_up: 0,
            i_gate: 0,
            i_down: 0,
        })
    }

    /// Chooses the type of the next tensor in output order. Tensors with a type from the user are
    /// not counted, which shifts the mix's bounds for the tensors after them.
    pub(crate) fn choose(&mut self, item: &Item) -> Result<Choice, Error> {
        let tensor = &item.tensor;
        let exactly = |dtype, by| Choice {
            dtype,
            unfit: None,
            by,
        };
        let default = match self.config.ftype.default_dtype() {
            Some(default) if self.is_quantizable(tensor) => default,
            _ => return Ok(exactly(tensor.dtype, Reason::Kept)),
        };
        let is_float = matches!(default, DType::F32 | DType::F16 | DType::BF16);
        let rule = self.rule(tensor)?;
        if let Some(dtype) = self.by_role(tensor, rule) {
            return Ok(exactly(dtype, Reason::Role));
        }
        let (dtype, by) = match (rule.filter(|_| !is_float), self.mtp_type(item)) {
            (Some(rule), _) => (rule.dtype, Reason::Rule(rule.pattern().to_owned())),
            (None, Some(dtype)) => (dtype, Reason::Mtp),
            _ if is_float || self.config.pure => (default, Reason::Pure),
            _ => (self.preferred(tensor, default)?, Reason::Mix),
        };
        let (fitting, unfit) = fit(dtype, tensor)?;
        Ok(Choice {
            dtype: fitting,
            unfit,
            by,
        })
    }

    /// Returns the first rule that matches the tensor's name.
    fn rule(&self, tensor: &Tensor) -> Result<Option<&'a TypeRule>, Error> {
        for rule in &self.config.tensor_types {
            let matches = rule.matches(&tensor.name);
            if matches.map_err(|reason| Error::Pattern {
                tensor: tensor.name.clone(),
                pattern: rule.pattern().to_owned(),
                reason,
            })? {
                return Ok(Some(rule));
            }
        }
        Ok(None)
    }

    /// Returns the configured type of output or embeddings. Rules have precedence only for
    /// per-layer token embeddings.
    fn by_role(&self, tensor: &Tensor, rule: Option<&TypeRule>) -> Option<DType> {
        let is_ruled = tensor.name == "per_layer_token_embd.weight" && rule.is_some();
        match Role::of(&tensor.name) {
            Role::Embedding if !is_ruled => self.config.embedding_type,
            Role::Output => self.config.output_type,
            _ => None,
        }
    }

    /// Returns the configured type of the MTP head; `eh_proj` gets at least Q8_0.
    fn mtp_type(&self, item: &Item) -> Option<DType> {
        let asked = self.config.mtp_type.filter(|_| self.is_mtp(item))?;
        let is_coarse = bits_per_weight(asked) < bits_per_weight(DType::Q8_0);
        match is_coarse && item.tensor.name.contains("nextn.eh_proj") {
            true => Some(DType::Q8_0),
            false => Some(asked),
        }
    }

    /// Checks whether the tensor belongs to an MTP layer.
    pub(crate) fn is_mtp(&self, item: &Item) -> bool {
        let mtp_layers = self.n_layer.saturating_sub(self.n_mtp)..self.n_layer;
        let layer = item.input_layer;
        layer.is_some_and(|layer| mtp_layers.contains(&layer))
    }

    /// Checks whether the tensor is a weight matrix that may be quantized.
    fn is_quantizable(&self, tensor: &Tensor) -> bool {
        let name = tensor.name.as_str();
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        tensor.logical_shape().len() > 1
            && name.ends_with("weight")
            && !has(KEPT_PARTS)
            && !(self.config.leave_output && name == "output.weight")
            && !KEPT_NAMES.contains(&name)
            && !(self.arch == "glm5-next" && has(KEPT_PARTS_GLM5_NEXT))
    }

    /// Returns the type before row lengths are considered.
    fn preferred(&mut self, tensor: &Tensor, default: DType) -> Result<DType, Error> {
        let name = tensor.name.as_str();
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        if self.arch == "glm5-next" && has(Q8_0_PARTS_GLM5_NEXT) {
            return Ok(DType::Q8_0);
        }
        let role = Role::of(name);
        // A tied embedding is the output matrix, too.
        if role == Role::Output || (role == Role::Embedding && self.is_tied) {
            let asked = self.config.output_type;
            return Ok(asked.unwrap_or_else(|| self.output(default, tensor.ne0())));
        }
        if self.config.ftype == FType::MXFP4_MOE {
            let is_ffn = matches!(role, Role::FfnUp | Role::FfnGate | Role::FfnDown);
            let is_expert = tensor.shape.get(2).is_some_and(|&n| n > 1)
                && (is_ffn || self.arch != "bailingmoe3");
            return Ok(if is_expert { DType::MXFP4 } else { DType::Q8_0 });
        }
        Ok(match role {
            Role::Value => {
                let i_value = self.i_value;
                self.i_value += 1;
                self.value(i_value, default)
            }
            Role::Key if self.n_expert == 8 && self.is_below_3_bits() => DType::Q4_K,
            Role::Key if self.n_expert == 8 => DType::Q8_0,
            Role::Key | Role::Query => match self.config.ftype {
                FType::IQ3_XXS => DType::IQ2_S,
                FType::IQ3_XS => DType::IQ3_XXS,
                _ => default,
            },
            Role::AttnOutput => self.attn_output(default),
            Role::FfnUp => {
                self.i_up += 1;
                self.up_or_gate(self.i_up - 1, tensor, default)?
            }
            Role::FfnGate => {
                self.i_gate += 1;
                self.up_or_gate(self.i_gate - 1, tensor, default)?
            }
            Role::FfnDown => {
                self.i_down += 1;
                let counted = self.i_down - 1;
                // These mixes count in files with experts, too.
                let layer = match self.is_below_3_bits() {
                    true => counted,
                    false => self.layer(counted, tensor)?,
                };
                self.down(layer, default)
            }
            Role::Embedding => self.embedding(default),
            Role::Output | Role::Other => default,
        })
    }

    fn output(&self, default: DType, ne0: u64) -> DType {
        let fits = default
            .layout()
            .is_some_and(|layout| ne0.is_multiple_of(layout.block_len));
        match default {
            DType::Q8_0 | DType::MXFP4 => DType::Q8_0,
            _ if !fits || self.arch == "falcon" => DType::Q8_0,
            _ if self.is_below_3_bits() || self.config.ftype == FType::IQ3_XXS => DType::Q5_K,
            _ => DType::Q6_K,
        }
    }

    /// True for the mixes of IQ1 and IQ2, which have rules of their own.
    fn is_below_3_bits(&self) -> bool {
        self.small_type().is_some()
    }

    /// Returns the type that the mixes of IQ1 and IQ2 give the tensors that need more bits.
    fn small_type(&self) -> Option<DType> {
        match self.config.ftype {
            FType::IQ1_S | FType::IQ1_M | FType::IQ2_XXS | FType::IQ2_XS => Some(DType::Q2_K),
            FType::IQ2_S | FType::IQ2_M => Some(DType::IQ3_S),
            _ => None,
        }
    }

    /// Returns the type of an embedding that is not the output matrix, too.
    fn embedding(&self, default: DType) -> DType {
        match self.config.ftype {
            FType::IQ3_XXS => DType::IQ3_S,
            FType::TQ1_0 | FType::TQ2_0 | FType::Q2_0 => DType::Q4_K,
            _ => self.small_type().unwrap_or(default),
        }
    }

    /// Returns the type of an up or a gate projection, of which `counted` were decided before.
    fn up_or_gate(&self, counted: u32, tensor: &Tensor, default: DType) -> Result<DType, Error> {
        if self.config.ftype != FType::IQ3_XS {
            return Ok(default);
        }
        let middle = self.n_layer / 8..7 * self.n_layer / 8;
        match middle.contains(&self.layer(counted, tensor)?) {
            true => Ok(DType::IQ3_XXS),
            false => Ok(default),
        }
    }

    fn value(&self, i: u32, default: DType) -> DType {
        if let Some(small) = self.small_type() {
            let is_cheap = self.n_gqa >= 4 || self.n_expert >= 4;
            return if is_cheap { DType::Q4_K } else { small };
        }
        let dtype = match self.config.ftype {
            FType::Q2_K if self.n_gqa >= 4 => DType::Q4_K,
            FType::Q2_K => DType::Q3_K,
            FType::Q2_K_S if self.n_gqa >= 4 => DType::Q4_K,
            FType::Q3_K_M if i < 2 => DType::Q5_K,
            FType::Q3_K_M => DType::Q4_K,
            FType::Q3_K_L => DType::Q5_K,
            FType::Q4_K_S if i < 4 => DType::Q5_K,
            FType::Q4_K_M | FType::Q5_K_M if matters(i, self.n_value) => DType::Q6_K,
            FType::IQ4_NL | FType::IQ4_XS if self.n_gqa >= 4 => DType::Q5_K,
            FType::IQ3_M => DType::Q4_K,
            FType::IQ3_XXS | FType::IQ3_XS | FType::IQ3_S if self.n_gqa >= 4 => DType::Q4_K,
            FType::IQ3_XXS if self.config.imatrix().is_none() => DType::IQ3_S,
            _ => default,
        };
        match dtype {
            // These V projections are small because of grouped-query attention, so more bits cost
            // little.
            _ if self.n_expert == 8 => DType::Q8_0,
            DType::Q3_K | DType::Q4_K if self.is_70b => DType::Q5_K,
            _ => dtype,
        }
    }

    fn attn_output(&self, default: DType) -> DType {
        match self.config.ftype {
            _ if self.is_below_3_bits() && self.n_expert == 8 => DType::Q5_K,
            FType::IQ1_S | FType::IQ1_M => DType::IQ2_XXS,
            FType::IQ2_S | FType::IQ2_M => DType::IQ3_S,
            FType::IQ2_XXS | FType::IQ2_XS => default,
            FType::Q3_K_L if self.arch == "falcon" => DType::Q4_K,
            _ if self.arch == "falcon" => default,
            FType::Q2_K
            | FType::Q3_K_S
            | FType::Q3_K_M
            | FType::Q4_K_S
            | FType::Q4_K_M
            | FType::IQ3_XXS
            | FType::IQ3_XS
            | FType::IQ3_S
            | FType::IQ3_M
            | FType::IQ4_NL
            | FType::IQ4_XS
                if self.n_expert == 8 =>
            {
                DType::Q5_K
            }
            _ if self.n_expert == 8 => default,
            FType::Q2_K => DType::Q3_K,
            FType::Q3_K_M => DType::Q4_K,
            FType::Q3_K_L => DType::Q5_K,
            FType::IQ3_XXS => DType::IQ3_S,
            FType::IQ3_M => DType::Q4_K,
            _ => default,
        }
    }

    /// Returns the layer of a projection of a feed-forward network: from the name in mixture-of-experts
    /// models, else the number of such projections that were decided before.
    fn layer(&self, counted: u32, tensor: &Tensor) -> Result<u32, Error> {
        if self.n_expert < 2 {
            return Ok(counted);
        }
        let layer = tensor.layer().filter(|&layer| layer < self.n_layer);
        layer.ok_or_else(|| Error::Layer {
            tensor: tensor.name.clone(),
            n_layer: self.n_layer,
        })
    }

    fn down(&self, layer: u32, default: DType) -> DType {
        let first_eighth = layer < self.n_layer / 8;
        let first_sixteenth = layer < self.n_layer / 16;
        let matters = matters(layer, self.n_layer);
        let has_imatrix = self.config.imatrix().is_some();
        if self.arch == "falcon" {
            match self.config.ftype {
                FType::Q3_K_M if first_sixteenth => return DType::Q5_K,
                FType::Q3_K_M if matters => return DType::Q4_K,
                FType::Q3_K_L => return DType::Q4_K,
                FType::Q4_K_M if first_sixteenth => return DType::Q6_K,
                FType::Q4_K_M if matters => return DType::Q5_K,
                FType::Q3_K_M | FType::Q4_K_M | FType::Q4_K_S => return default,
                _ => {}
            }
        }
        if let Some(small) = self.small_type() {
            return if first_eighth { small } else { default };
        }
        match self.config.ftype {
            FType::IQ3_XXS if !has_imatrix && first_eighth => DType::Q4_K,
            FType::IQ3_XXS if !has_imatrix => DType::Q3_K,
            FType::IQ3_M if first_eighth || (self.n_expert == 8 && matters) => DType::Q4_K,
            FType::Q2_K => DType::Q3_K,
            FType::Q2_K_S if first_eighth => DType::Q4_K,
            FType::Q3_K_M if first_sixteenth => DType::Q5_K,
            FType::Q3_K_M => DType::Q4_K,
            FType::Q3_K_L => DType::Q5_K,
            FType::Q4_K_M | FType::Q5_K_M if matters => DType::Q6_K,
            FType::Q4_K_S if first_eighth => DType::Q5_K,
            FType::IQ4_NL | FType::IQ4_XS if first_eighth && !has_imatrix => DType::Q5_K,
            FType::Q4_0 if first_eighth && has_imatrix => DType::Q4_1,
            FType::Q5_0 if first_eighth && has_imatrix => DType::Q5_1,
            _ => default,
        }
    }
}

/// Checks whether the `_M` mixes give layer `i` of `n` more bits: the first eighth, the last
/// eighth, and every third layer between them.
fn matters(i: u32, n: u32) -> bool {
    let first = n / 8;
    i < first || i >= 7 * n / 8 || (i - first) % 3 == 2
}

/// Returns the first layer's value of a key that has one number, or one per layer.
fn first_layer(metadata: &Metadata, key: &str) -> Result<Option<u32>, KeyError> {
    if metadata
        .get(key)
        .is_some_and(|value| value.as_array().is_some())
    {
        return Ok(metadata.u32s(key)?.and_then(|all| all.first().copied()));
    }
    metadata.u32(key)
}

/// Returns the bits per weight of a type.
fn bits_per_weight(dtype: DType) -> f64 {
    let layout = dtype.layout();
    layout.map_or(f64::INFINITY, |l| {
        l.block_bytes as f64 * 8.0 / l.block_len as f64
    })
}

/// Returns `dtype` if the row length is a multiple of its block length, else a type of smaller
/// blocks, else F16; with the type that did not fit.
fn fit(dtype: DType, tensor: &Tensor) -> Result<(DType, Option<DType>), Error> {
    let is_whole = |dtype: DType| dtype.row_bytes(tensor.ne0()).is_some();
    if is_whole(dtype) {
        return Ok((dtype, None));
    }
    let smaller = match dtype {
        // As in llama.cpp, no other type is like these.
        DType::Q1_0 | DType::NVFP4 => {
            return Err(Error::Unfit {
                tensor: tensor.name.clone(),
                to: dtype,
                n_columns: tensor.ne0(),
            });
        }
        DType::Q2_K | DType::Q3_K | DType::Q2_0 | DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::IQ1_S
        | DType::IQ1_M
        | DType::IQ2_XXS
        | DType::IQ2_XS
        | DType::IQ2_S
        | DType::IQ3_XXS
        | DType::IQ3_S
        | DType::IQ4_XS => DType::IQ4_NL,
        _ => DType::F16,
    };
    match is_whole(smaller) {
        true => Ok((smaller, Some(dtype))),
        false => Ok((DType::F16, Some(dtype))),
    }
}

/// Types whose quantization minimizes an error that an importance matrix can weight.
pub(crate) const IMPORTANCE_TYPES: &[DType] = &[
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ1_S,
    DType::IQ1_M,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
    DType::IQ4_NL,
    DType::IQ4_XS,
];

/// Checks whether the tensor is an embedding, whose rows are looked up rather than multiplied.
pub(crate) fn is_embedding(name: &str) -> bool {
    Role::of(name) == Role::Embedding
}

/// Checks whether the type has so few bits that the result is useless without an importance matrix.
pub(crate) fn needs_imatrix(ftype: FType, tensor: &Tensor, dtype: DType) -> bool {
    let is_spared = matches!(Role::of(&tensor.name), Role::Output | Role::Embedding);
    match dtype {
        DType::IQ1_S | DType::IQ2_XXS | DType::IQ2_XS => true,
        DType::IQ1_M | DType::IQ2_S | DType::IQ3_XXS => !is_spared,
        DType::Q2_K => ftype == FType::Q2_K_S && !is_spared,
        _ => false,
    }
}
