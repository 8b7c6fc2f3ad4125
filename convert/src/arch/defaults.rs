//! Defaults of absent config fields. llama.cpp's converter reads configs through the transformers library,
//! which fills them in.

use serde_json::{Map, Value};

use crate::hf_config::{HfConfig, ORIGINAL_CONTEXT};
use crate::note::Note;

/// The default of an absent field.
#[derive(Clone, Copy)]
pub(super) enum Fill {
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
    /// The number of entries of another field, a list.
    EntriesOf(&'static str),
    /// A fixed integer, unless another field is given.
    Without(&'static str, u64),
}

impl Fill {
    /// Returns the default if it does not depend on other fields.
    fn fixed(self) -> Option<Value> {
        match self {
            Fill::Integer(n) | Fill::Without(_, n) => Some(n.into()),
            Fill::Real(x) => Some(x.into()),
            Fill::True => Some(true.into()),
            Fill::Text(text) => Some(text.into()),
            Fill::HeadCount | Fill::HeadWidth | Fill::Field(_) | Fill::EntriesOf(_) => None,
        }
    }
}

/// Defaults of a model type, from transformers 5.23.
pub(crate) struct Defaults {
    /// `model_type` of the config.
    pub(crate) model_type: &'static str,
    /// Defaults of the text model's fields.
    pub(super) fields: &'static [(&'static str, Fill)],
    /// Defaults of RoPE parameters, in addition to the base.
    pub(super) rope: &'static [(&'static str, f64)],
}

/// RoPE base of models without another default.
const USUAL_ROPE_THETA: (&str, f64) = ("rope_theta", 10_000.0);

/// Fills absent fields of a config, those of RoPE only if attention has positions. Returns a note of those that affect
/// the model's results.
pub(crate) fn fill(
    config: &mut HfConfig,
    defaults: &Defaults,
    has_positions: bool,
) -> Option<Note> {
    let mut filled = Filled(Vec::new());
    filled.fields(&mut config.fields.map, defaults.fields);
    if has_positions {
        filled.rope(&mut config.rope.map, defaults.rope, &config.fields.map);
    }
    let Filled(fields) = filled;
    (!fields.is_empty()).then_some(Note::Defaults { fields })
}

/// The filled fields, as `name = value`.
struct Filled(Vec<String>);

impl Filled {
    fn set(&mut self, map: &mut Map<String, Value>, field: &str, value: Value) {
        self.0.push(format!("{field} = {value}"));
        map.insert(field.to_owned(), value);
    }

    fn fields(&mut self, map: &mut Map<String, Value>, defaults: &[(&str, Fill)]) {
        let integer = |map: &Map<String, Value>, field: &str| map.get(field)?.as_u64();
        let n_head = integer(map, "num_attention_heads");
        let n_embd = integer(map, "hidden_size");
        for &(field, default) in defaults {
            if matches!(default, Fill::Without(other, _) if map.contains_key(other)) {
                continue;
            }
            let is_null = match map.get(field) {
                None => false,
                Some(Value::Null) => true,
                Some(_) => continue,
            };
            if let (Some(value), false) = (default.fixed(), is_null) {
                self.set(map, field, value);
                continue;
            }
            // A null field is filled only if its default is derived from other fields.
            let derived = match default {
                Fill::HeadWidth => n_embd.zip(n_head).and_then(|(d, n)| d.checked_div(n)),
                Fill::Field(other) => integer(map, other),
                Fill::HeadCount => n_head,
                Fill::EntriesOf(list) => {
                    let list = map.get(list).and_then(Value::as_array);
                    list.map(|list| list.len() as u64)
                }
                _ if field == "num_key_value_heads" => n_head,
                _ => None,
            };
            if let Some(value) = derived {
                map.insert(field.to_owned(), value.into());
            }
        }
    }

    fn rope(
        &mut self,
        rope: &mut Map<String, Value>,
        defaults: &[(&str, f64)],
        fields: &Map<String, Value>,
    ) {
        for &(field, default) in defaults.iter().chain(&[USUAL_ROPE_THETA]) {
            if rope.get(field).is_none_or(Value::is_null) {
                self.set(rope, field, default.into());
            }
        }
        let is_scaled = matches!(
            rope.get("rope_type").and_then(Value::as_str),
            Some("llama3" | "yarn" | "longrope")
        );
        if is_scaled && !rope.contains_key(ORIGINAL_CONTEXT) {
            let n_ctx = fields.get("max_position_embeddings").cloned();
            self.set(rope, ORIGINAL_CONTEXT, n_ctx.unwrap_or(Value::Null));
        }
    }
}
