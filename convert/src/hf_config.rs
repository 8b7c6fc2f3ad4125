//! `config.json`, with typed reads. Errors name the file and the field.
//!
//! llama.cpp's converter reads configs through the transformers library, which fills absent fields with its
//! defaults and collects the RoPE parameters in one place. This module does the same, with the defaults of
//! transformers 5.23 as a table.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemas::input;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::note::Note;

/// Reads a regular file up to a size limit.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    input::read(path, input::Kind::File, input::MAX_WHOLE).map_err(|source| Error::Io {
        path: path.to_path_buf(),
        source,
    })
}

/// Reads a JSON file that contains an object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, Error> {
    serde_json::from_slice(&read_file(path)?).map_err(|source| Error::Json {
        path: path.to_path_buf(),
        source,
    })
}

/// Like [`read_object`], but the file may be absent.
pub(crate) fn read_optional_object(path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    match fs::exists(path) {
        Ok(false) => Ok(None),
        _ => read_object(path).map(Some),
    }
}

/// Typed access to the fields of a JSON object. Where several names are given, the first one present
/// counts; null counts as absent.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    path: PathBuf,
    /// Prefix of field names in messages.
    prefix: &'static str,
    map: Map<String, Value>,
}

impl Fields {
    fn find(&self, names: &[&str]) -> Option<(String, &Value)> {
        let (name, value) = names
            .iter()
            .find_map(|&name| Some((name, self.map.get(name)?)))?;
        (!value.is_null()).then(|| (format!("{}{name}", self.prefix), value))
    }

    /// Returns a value converted by `read`, or an error that states what was expected.
    pub(crate) fn typed<T>(
        &self,
        names: &[&str],
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some((field, value)) = self.find(names) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| Error::Field {
            path: self.path.clone(),
            field,
            expected: expected.to_owned(),
            found: shorten(value),
        })
    }

    /// Returns the raw value.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }

    /// Returns an unsigned integer below 2^32.
    pub(crate) fn u32(&self, names: &[&str]) -> Result<Option<u32>, Error> {
        self.typed(names, "an integer from 0 to 4294967295", |v| {
            v.as_u64()?.try_into().ok()
        })
    }

    /// Returns a number.
    pub(crate) fn f64(&self, names: &[&str]) -> Result<Option<f64>, Error> {
        self.typed(names, "a number", Value::as_f64)
    }

    /// Returns a boolean.
    pub(crate) fn bool(&self, names: &[&str]) -> Result<Option<bool>, Error> {
        self.typed(names, "true or false", Value::as_bool)
    }

    /// Returns a text.
    pub(crate) fn str(&self, names: &[&str]) -> Result<Option<String>, Error> {
        self.typed(names, "text", |v| v.as_str().map(str::to_owned))
    }

    /// Returns a list of texts.
    pub(crate) fn strings(&self, names: &[&str]) -> Result<Option<Vec<String>>, Error> {
        self.typed(names, "a list of texts", |v| {
            v.as_array()?
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect()
        })
    }

    /// Returns a list of integers.
    pub(crate) fn i32s(&self, names: &[&str]) -> Result<Option<Vec<i32>>, Error> {
        self.typed(names, "a list of integers", |v| {
            v.as_array()?
                .iter()
                .map(|item| item.as_i64()?.try_into().ok())
                .collect()
        })
    }

    /// Like [`Fields::u32`], but the field is required.
    pub(crate) fn need_u32(&self, name: &str) -> Result<u32, Error> {
        self.u32(&[name])?.ok_or_else(|| self.missing(name))
    }

    /// Like [`Fields::f64`], but the field is required.
    pub(crate) fn need_f64(&self, name: &str) -> Result<f64, Error> {
        self.f64(&[name])?.ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> Error {
        Error::MissingField {
            path: self.path.clone(),
            field: format!("{}{name}", self.prefix),
        }
    }
}

/// Shortens a value for messages.
fn shorten(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// Object with the settings of a draft's only layer.
const LAYER_CONFIG: &str = "transformer_layer_config";
/// Objects of a config whose fields override those of the root.
const PARTS: [&str; 2] = ["text_config", LAYER_CONFIG];

/// A checkpoint's `config.json`.
#[derive(Debug)]
pub(crate) struct HfConfig {
    /// The checkpoint's folder.
    pub(crate) folder: PathBuf,
    /// The model's name, if it differs from the folder's.
    pub(crate) name: Option<String>,
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// The file's root object, unmodified.
    pub(crate) root: Map<String, Value>,
    /// Fields of the text model: those of nested objects override those of the root; defaults fill the
    /// rest.
    pub(crate) fields: Fields,
    /// RoPE parameters.
    pub(crate) rope: Fields,
}

impl HfConfig {
    /// Reads `config.json` of a checkpoint.
    pub(crate) fn open(folder: &Path) -> Result<HfConfig, Error> {
        let path = folder.join("config.json");
        if fs::metadata(&path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Err(Error::NoCheckpoint {
                path: folder.to_path_buf(),
                what: match folder.is_dir() {
                    true => "has no config.json",
                    false => "is not there",
                },
            });
        }
        let root = read_object(&path)?;
        let mut map = root.clone();
        for part in PARTS {
            let Some(value) = map.remove(part).filter(|value| !value.is_null()) else {
                continue;
            };
            let Value::Object(mut value) = value else {
                return Err(Error::Field {
                    path,
                    field: part.to_owned(),
                    expected: "an object".to_owned(),
                    found: shorten(&value),
                });
            };
            // `architectures` of the layer's config is not the draft's class.
            if part == LAYER_CONFIG {
                value.remove("architectures");
            }
            map.extend(value);
        }
        Ok(HfConfig {
            folder: folder.to_path_buf(),
            name: None,
            rope: Fields {
                path: path.clone(),
                prefix: "rope_parameters.",
                map: rope_parameters(&map),
            },
            fields: Fields {
                path: path.clone(),
                prefix: "",
                map,
            },
            path,
            root,
        })
    }

    /// Returns the fields of a nested object, if there is one of that name.
    pub(crate) fn nested(&self, name: &'static str) -> Result<Option<Fields>, Error> {
        let read = |value: &Value| value.as_object().cloned();
        let map = self.fields.typed(&[name], "an object", read)?;
        Ok(map.map(|map| Fields {
            path: self.path.clone(),
            prefix: "",
            map,
        }))
    }

    /// Returns the model's class: the first of `architectures`, preferably the text model's own.
    pub(crate) fn class(&self) -> Result<String, Error> {
        let missing = || Error::MissingField {
            path: self.path.clone(),
            field: "architectures".to_owned(),
        };
        let classes = self.fields.strings(&["architectures"])?;
        classes
            .and_then(|classes| classes.into_iter().next())
            .ok_or_else(missing)
    }

    /// Fills absent fields with transformers' defaults.
    ///
    /// Returns a note of those that affect the model's results.
    pub(crate) fn fill_defaults(&mut self, arch: &str) -> Option<Note> {
        let model_type = self.fields.get("model_type").and_then(Value::as_str);
        let defaults = DEFAULTS
            .iter()
            .find(|defaults| Some(defaults.model_type) == model_type)
            .or_else(|| DEFAULTS.iter().find(|defaults| defaults.arch == arch))?;
        let mut filled = Vec::new();
        let mut fill = |map: &mut Map<String, Value>, field: &str, value: Value| {
            filled.push(format!("{field} = {value}"));
            map.insert(field.to_owned(), value);
        };
        let map = &mut self.fields.map;
        let n_head = map.get("num_attention_heads").and_then(Value::as_u64);
        let n_embd = map.get("hidden_size").and_then(Value::as_u64);
        for &(field, default) in defaults.fields {
            let null = match map.get(field) {
                None => false,
                Some(Value::Null) => true,
                Some(_) => continue,
            };
            // A null field is filled only if its default is derived from other fields.
            let derived = match default {
                Fill::HeadWidth => n_embd.zip(n_head).and_then(|(d, n)| d.checked_div(n)),
                Fill::HeadCount => n_head,
                Fill::Field(other) => map.get(other).and_then(Value::as_u64),
                Fill::Integer(_) if null && field == "num_key_value_heads" => n_head,
                Fill::Integer(_) | Fill::Real(_) | Fill::True | Fill::Text(_) if null => None,
                Fill::Integer(n) => {
                    fill(map, field, n.into());
                    continue;
                }
                Fill::Real(x) => {
                    fill(map, field, x.into());
                    continue;
                }
                Fill::True => {
                    fill(map, field, true.into());
                    continue;
                }
                Fill::Text(text) => {
                    fill(map, field, text.into());
                    continue;
                }
            };
            if let Some(value) = derived {
                map.insert(field.to_owned(), value.into());
            }
        }
        let rope = &mut self.rope.map;
        for &(field, default) in defaults.rope.iter().chain(&[USUAL_ROPE_THETA]) {
            if rope.get(field).is_none_or(Value::is_null) {
                fill(rope, field, default.into());
            }
        }
        let scaled = matches!(
            rope.get("rope_type").and_then(Value::as_str),
            Some("llama3" | "yarn" | "longrope")
        );
        if scaled && !rope.contains_key(ORIGINAL_CONTEXT) {
            let n_ctx = map.get("max_position_embeddings").cloned();
            fill(rope, ORIGINAL_CONTEXT, n_ctx.unwrap_or(Value::Null));
        }
        (!filled.is_empty()).then_some(Note::Defaults { fields: filled })
    }
}

/// RoPE base of sliding-window layers, in addition to that of the other layers.
pub(crate) const SLIDING_THETA: &str = "sliding_rope_theta";

const ORIGINAL_CONTEXT: &str = "original_max_position_embeddings";

/// Collects the RoPE parameters from the old and the new layout: `rope_scaling` has
/// precedence over `rope_parameters`, and nested fields over outer ones.
fn rope_parameters(map: &Map<String, Value>) -> Map<String, Value> {
    let mut rope = ["rope_scaling", "rope_parameters"]
        .iter()
        .find_map(|&field| map.get(field)?.as_object().filter(|map| !map.is_empty()))
        .cloned()
        .unwrap_or_default();
    // If there is one object per kind of layer, the common parameters are those of full attention.
    let of_kind = |kind: &str| rope.get(kind).and_then(Value::as_object).cloned();
    let (full, sliding) = (of_kind("full_attention"), of_kind("sliding_attention"));
    let theta = sliding.as_ref().and_then(|rope| rope.get("rope_theta"));
    let theta = theta.or(map.get("rope_local_base_freq")).cloned();
    rope = full.unwrap_or(rope);
    if let Some(theta) = theta {
        rope.insert(SLIDING_THETA.to_owned(), theta);
    }
    for field in ["rope_theta", "partial_rotary_factor"] {
        if let (false, Some(value)) = (rope.contains_key(field), map.get(field)) {
            rope.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(value) = map.get(ORIGINAL_CONTEXT) {
        rope.insert(ORIGINAL_CONTEXT.to_owned(), value.clone());
    }
    if !rope.contains_key("rope_type") {
        let kind = rope.get("type").cloned().unwrap_or("default".into());
        rope.insert("rope_type".to_owned(), kind);
    }
    rope
}

/// The default of an absent field.
#[derive(Clone, Copy)]
enum Fill {
    /// A fixed integer.
    Integer(u64),
    /// A fixed number.
    Real(f64),
    /// The value of `num_attention_heads`.
    HeadCount,
    /// The value of `hidden_size / num_attention_heads`.
    HeadWidth,
    /// The value `true`.
    True,
    /// A fixed text.
    Text(&'static str),
    /// The value of another field.
    Field(&'static str),
}

/// Defaults of a model type.
struct Defaults {
    model_type: &'static str,
    /// The architecture that uses them if the model type is unknown; the first match counts.
    arch: &'static str,
    fields: &'static [(&'static str, Fill)],
    /// Defaults of RoPE parameters, in addition to the base.
    rope: &'static [(&'static str, f64)],
}

const USUAL_ROPE_THETA: (&str, f64) = ("rope_theta", 10_000.0);

const DEFAULTS: &[Defaults] = &[
    Defaults {
        model_type: "llama",
        arch: "llama",
        fields: &[
            ("num_key_value_heads", Fill::HeadCount),
            ("head_dim", Fill::HeadWidth),
            ("max_position_embeddings", Fill::Integer(2048)),
            ("rms_norm_eps", Fill::Real(1e-6)),
        ],
        rope: &[],
    },
    Defaults {
        model_type: "mistral",
        arch: "llama",
        fields: &[
            ("num_key_value_heads", Fill::Integer(8)),
            ("head_dim", Fill::HeadWidth),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("rms_norm_eps", Fill::Real(1e-6)),
        ],
        rope: &[],
    },
    Defaults {
        model_type: "mixtral",
        arch: "llama",
        fields: &[
            ("num_key_value_heads", Fill::Integer(8)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("intermediate_size", Fill::Integer(14_336)),
            ("rms_norm_eps", Fill::Real(1e-5)),
            ("num_local_experts", Fill::Integer(8)),
            ("num_experts_per_tok", Fill::Integer(2)),
        ],
        rope: &[("rope_theta", 1e6)],
    },
    Defaults {
        model_type: "qwen2",
        arch: "qwen2",
        fields: &[
            ("num_key_value_heads", Fill::HeadCount),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
        ],
        rope: &[],
    },
    Defaults {
        model_type: "qwen3_moe",
        arch: "qwen3moe",
        fields: &[
            ("num_key_value_heads", Fill::Integer(4)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("intermediate_size", Fill::Integer(6144)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("num_experts_per_tok", Fill::Integer(8)),
            ("moe_intermediate_size", Fill::Integer(768)),
        ],
        rope: &[],
    },
    Defaults {
        model_type: "qwen3_next",
        arch: "qwen3next",
        fields: &[
            ("num_key_value_heads", Fill::Integer(2)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("intermediate_size", Fill::Integer(5632)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("linear_conv_kernel_dim", Fill::Integer(4)),
            ("linear_key_head_dim", Fill::Integer(128)),
            ("linear_value_head_dim", Fill::Integer(128)),
            ("linear_num_key_heads", Fill::Integer(16)),
            ("linear_num_value_heads", Fill::Integer(32)),
            ("num_experts", Fill::Integer(512)),
            ("num_experts_per_tok", Fill::Integer(10)),
            ("moe_intermediate_size", Fill::Integer(512)),
            ("shared_expert_intermediate_size", Fill::Integer(512)),
        ],
        rope: &[("partial_rotary_factor", 0.25)],
    },
    Defaults {
        model_type: "qwen3",
        arch: "qwen3",
        fields: &[
            ("num_key_value_heads", Fill::Integer(32)),
            ("head_dim", Fill::Integer(128)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
        ],
        rope: &[],
    },
    Defaults {
        model_type: "gemma3_text",
        arch: "gemma3",
        fields: &[
            ("vocab_size", Fill::Integer(262_208)),
            ("hidden_size", Fill::Integer(2304)),
            ("intermediate_size", Fill::Integer(9216)),
            ("num_hidden_layers", Fill::Integer(26)),
            ("num_attention_heads", Fill::Integer(8)),
            ("num_key_value_heads", Fill::Integer(4)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("sliding_window", Fill::Integer(4096)),
        ],
        rope: &[("rope_theta", 1e6), (SLIDING_THETA, 10_000.0)],
    },
    Defaults {
        model_type: "glm4_moe",
        arch: "glm4moe",
        fields: &[
            ("num_key_value_heads", Fill::Integer(8)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("rms_norm_eps", Fill::Real(1e-5)),
            ("n_routed_experts", Fill::Integer(128)),
            ("num_experts_per_tok", Fill::Integer(8)),
            ("n_shared_experts", Fill::Integer(1)),
            ("moe_intermediate_size", Fill::Integer(1408)),
            ("first_k_dense_replace", Fill::Integer(1)),
            ("routed_scaling_factor", Fill::Real(1.0)),
            ("n_group", Fill::Integer(1)),
            ("topk_group", Fill::Integer(1)),
        ],
        rope: &[("partial_rotary_factor", 0.5)],
    },
    Defaults {
        model_type: "gpt_oss",
        arch: "gpt-oss",
        fields: &[
            ("num_key_value_heads", Fill::Integer(8)),
            ("head_dim", Fill::Integer(64)),
            ("max_position_embeddings", Fill::Integer(131_072)),
            ("intermediate_size", Fill::Integer(2880)),
            ("rms_norm_eps", Fill::Real(1e-5)),
            ("sliding_window", Fill::Integer(128)),
            ("num_local_experts", Fill::Integer(128)),
            ("num_experts_per_tok", Fill::Integer(4)),
        ],
        rope: &[("rope_theta", 150_000.0)],
    },
    Defaults {
        model_type: "deepseek_v3",
        arch: "deepseek2",
        fields: &[
            ("intermediate_size", Fill::Integer(18_432)),
            ("moe_intermediate_size", Fill::Integer(2048)),
            ("max_position_embeddings", Fill::Integer(4096)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("first_k_dense_replace", Fill::Integer(3)),
            ("q_lora_rank", Fill::Integer(1536)),
            ("kv_lora_rank", Fill::Integer(512)),
            ("qk_nope_head_dim", Fill::Integer(128)),
            ("qk_rope_head_dim", Fill::Integer(64)),
            ("v_head_dim", Fill::Integer(128)),
            ("head_dim", Fill::Field("qk_rope_head_dim")),
            ("n_routed_experts", Fill::Integer(256)),
            ("n_shared_experts", Fill::Integer(1)),
            ("num_experts_per_tok", Fill::Integer(8)),
            ("n_group", Fill::Integer(8)),
            ("topk_group", Fill::Integer(4)),
            ("routed_scaling_factor", Fill::Real(2.5)),
            ("norm_topk_prob", Fill::True),
            // The only scoring function of the class; readers assume it.
            ("scoring_func", Fill::Text("sigmoid")),
        ],
        rope: &[],
    },
    Defaults {
        model_type: "deepseek_v2",
        arch: "deepseek2",
        fields: &[
            ("intermediate_size", Fill::Integer(11_008)),
            ("moe_intermediate_size", Fill::Integer(1407)),
            ("max_position_embeddings", Fill::Integer(2048)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("first_k_dense_replace", Fill::Integer(0)),
            ("q_lora_rank", Fill::Integer(1536)),
            ("kv_lora_rank", Fill::Integer(512)),
            ("qk_nope_head_dim", Fill::Integer(128)),
            ("qk_rope_head_dim", Fill::Integer(64)),
            ("v_head_dim", Fill::Integer(128)),
            ("head_dim", Fill::Field("qk_rope_head_dim")),
            ("n_routed_experts", Fill::Integer(64)),
            ("n_shared_experts", Fill::Integer(2)),
            ("routed_scaling_factor", Fill::Real(1.0)),
            ("topk_method", Fill::Text("greedy")),
        ],
        rope: &[],
    },
    Defaults {
        model_type: "qwen3_5_text",
        arch: "qwen35",
        fields: &[
            ("num_key_value_heads", Fill::Integer(4)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("linear_conv_kernel_dim", Fill::Integer(4)),
            ("linear_key_head_dim", Fill::Integer(128)),
            ("linear_value_head_dim", Fill::Integer(128)),
            ("linear_num_key_heads", Fill::Integer(16)),
            ("linear_num_value_heads", Fill::Integer(32)),
        ],
        rope: &[("partial_rotary_factor", 0.25)],
    },
    Defaults {
        model_type: "qwen3_5_moe_text",
        arch: "qwen35moe",
        fields: &[
            ("num_key_value_heads", Fill::Integer(2)),
            ("head_dim", Fill::Integer(256)),
            ("max_position_embeddings", Fill::Integer(32_768)),
            ("rms_norm_eps", Fill::Real(1e-6)),
            ("linear_conv_kernel_dim", Fill::Integer(4)),
            ("linear_key_head_dim", Fill::Integer(128)),
            ("linear_value_head_dim", Fill::Integer(128)),
            ("linear_num_key_heads", Fill::Integer(16)),
            ("linear_num_value_heads", Fill::Integer(32)),
            ("num_experts", Fill::Integer(256)),
            ("num_experts_per_tok", Fill::Integer(8)),
            ("moe_intermediate_size", Fill::Integer(512)),
            ("shared_expert_intermediate_size", Fill::Integer(512)),
        ],
        rope: &[("partial_rotary_factor", 0.25)],
    },
];
