//! Reads the generation settings that `/completion`, `/v1/completions` and `/v1/chat/completions` share.
//!
//! Fields that this server does not support are refused unless their value changes nothing: a setting is
//! never ignored silently.

use runner::sample::SampleConfig;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::job::Params;

/// Maximum number of stop strings, and of bytes of each.
const MAX_STOP: [usize; 2] = [16, 256];
/// Maximum number of most likely tokens returned per position.
pub(crate) const MAX_TOP: i64 = 20;
/// This seed, like -1, asks for a random seed.
pub(crate) const RANDOM_SEED: u64 = u32::MAX as u64;

/// Settings that change what is generated in ways this server does not offer, with the value that
/// changes nothing.
const UNSUPPORTED: [(&str, f64); 15] = [
    ("typical_p", 1.0),
    ("typ_p", 1.0),
    ("top_n_sigma", -1.0),
    ("xtc_probability", 0.0),
    ("dynatemp_range", 0.0),
    ("mirostat", 0.0),
    ("dry_multiplier", 0.0),
    ("repeat_penalty", 1.0),
    ("repetition_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("length_penalty", 1.0),
    ("n_keep", 0.0),
    ("reasoning_budget_tokens", -1.0),
    ("thinking_budget_tokens", -1.0),
];

/// Objects and lists that are refused unless they are empty or false.
const REFUSED: [&str; 12] = [
    "grammar",
    "json_schema",
    "guided_json",
    "guided_regex",
    "logit_bias",
    "lora",
    "samplers",
    "tools",
    "functions",
    "suffix",
    "use_beam_search",
    "post_sampling_probs",
];

/// Settings of a request besides those of a [`Params`].
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    /// Settings of each choice.
    pub(crate) params: Params,
    /// Number of choices per prompt.
    pub(crate) n: usize,
    /// Send events instead of one reply.
    pub(crate) stream: bool,
    /// Send usage in a chunk of its own at the end of a stream.
    pub(crate) include_usage: bool,
    /// Send usage in every chunk.
    pub(crate) continuous_usage: bool,
    /// Return token ids beside the text.
    pub(crate) return_tokens: bool,
}

impl Generation {
    /// Reads the settings of a request. `defaults` has the server's sampling settings; `random_seed` is
    /// used if the request asks for no seed.
    ///
    /// # Errors
    /// A field has the wrong type or range, or is not supported.
    pub(crate) fn read(
        fields: Fields<'_>,
        defaults: SampleConfig,
        random_seed: u64,
        n_slots: usize,
    ) -> Result<Generation, ApiError> {
        for (name, neutral) in UNSUPPORTED {
            fields.neutral(name, |value| value.as_f64() == Some(neutral))?;
        }
        for name in REFUSED {
            fields.neutral(name, is_empty)?;
        }
        let format = |value: &Value| value["type"] == "text";
        fields.neutral("response_format", format)?;
        let n = fields.integer("n", 1, n_slots as i64)?;
        let n = n
            .or(fields.integer("n_cmpl", 1, n_slots as i64)?)
            .unwrap_or(1);
        fields.neutral("best_of", |value| value.as_i64() == Some(n))?;
        let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        // With `ignore_eos` a text has all `n_predict` tokens.
        fields.neutral("min_tokens", |value| {
            value == 0 || (ignore_eos && value.is_u64())
        })?;
        let sample = SampleConfig {
            temperature: fields
                .number("temperature", 0.0, 100.0)?
                .unwrap_or(defaults.temperature),
            top_k: match fields.integer("top_k", -1, i64::from(u32::MAX))? {
                Some(n) => n.max(0) as usize,
                None => defaults.top_k,
            },
            top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(defaults.top_p),
            min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(defaults.min_p),
            seed: match fields.integer("seed", -1, i64::MAX)?.map(u64::try_from) {
                None | Some(Err(_) | Ok(RANDOM_SEED)) => random_seed,
                Some(Ok(seed)) => seed,
            },
        };
        let usage = match fields.get("stream_options") {
            Some(options) => Some(Fields::of(options)?),
            None => None,
        };
        let option = |name| match usage {
            Some(usage) => usage.boolean(name).map(|value| value.unwrap_or(false)),
            None => Ok(false),
        };
        let return_tokens = ["return_tokens", "return_token_ids"]
            .into_iter()
            .map(|name| fields.boolean(name))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Generation {
            params: Params {
                n_predict: n_predict(fields)?,
                sample,
                stop: stop(fields)?,
                ignore_eos,
                n_probs: None,
                prompt_probs: false,
                n_draft_max: n_draft_max(fields)?,
                cache_prompt: fields.boolean("cache_prompt")?.unwrap_or(true),
                id_slot: match fields.integer("id_slot", -1, n_slots as i64 - 1)? {
                    Some(slot @ 0..) => Some(slot as usize),
                    _ => None,
                },
                logits_hash: fields.boolean("logits_hash")?.unwrap_or(false),
            },
            n: n as usize,
            stream: fields.boolean("stream")?.unwrap_or(false),
            include_usage: option("include_usage")?,
            continuous_usage: option("continuous_usage_stats")?,
            return_tokens: return_tokens.contains(&Some(true)),
        })
    }

    /// Returns the settings as `generation_settings` reports them.
    pub(crate) fn settings(&self, spec_types: &[String]) -> Value {
        let p = &self.params;
        let mut settings = Map::new();
        let n_predict = p.n_predict.map_or(json!(-1), |n| json!(n));
        for (name, value) in [
            ("n_predict", n_predict.clone()),
            ("max_tokens", n_predict),
            ("temperature", json!(p.sample.temperature)),
            ("top_k", json!(p.sample.top_k)),
            ("top_p", json!(p.sample.top_p)),
            ("min_p", json!(p.sample.min_p)),
            ("seed", json!(p.sample.seed)),
            ("stop", json!(p.stop)),
            ("ignore_eos", json!(p.ignore_eos)),
            ("stream", json!(self.stream)),
            ("n_probs", json!(p.n_probs.unwrap_or(0))),
            ("speculative.types", json!(spec_types.join(","))),
            ("speculative.n_max", json!(p.n_draft_max)),
        ] {
            settings.insert(name.to_owned(), value);
        }
        settings.into()
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(value) => !value,
        _ => false,
    }
}

/// Returns the maximum number of tokens: the first of the three names that is present.
fn n_predict(fields: Fields<'_>) -> Result<Option<usize>, ApiError> {
    let names = ["n_predict", "max_completion_tokens", "max_tokens"];
    let values = names.map(|name| fields.integer(name, -1, i64::from(i32::MAX)));
    for value in values {
        if let Some(n) = value? {
            return Ok(usize::try_from(n).ok());
        }
    }
    Ok(None)
}

fn stop(fields: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let [max_strings, max_bytes] = MAX_STOP;
    let wrong = || {
        ApiError::invalid(format!(
            "field 'stop': expected a string, or up to {max_strings} strings, of 1 to {max_bytes} bytes"
        ))
    };
    let strings: Vec<String> = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) => {
            let strings = items.iter().map(|item| item.as_str().map(str::to_owned));
            strings.collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    let is_valid = |text: &String| (1..=max_bytes).contains(&text.len());
    match strings.len() <= max_strings && strings.iter().all(is_valid) {
        true => Ok(strings),
        false => Err(wrong()),
    }
}

/// Returns the maximum draft length of a request: `speculative.n_max`, or `speculative: false` for 0.
fn n_draft_max(fields: Fields<'_>) -> Result<Option<usize>, ApiError> {
    let max = runner::context::MAX_DRAFT as i64;
    let n_max = fields.integer("speculative.n_max", 0, max)?;
    for name in [
        "speculative.n_min",
        "speculative.p_min",
        "speculative.type",
        "speculative.types",
    ] {
        fields.neutral(name, |_| false)?;
    }
    let nested = match fields.get("speculative") {
        Some(Value::Bool(false)) => Some(0),
        Some(Value::Bool(true)) | None => None,
        Some(options) => Fields::of(options)?.integer("n_max", 0, max)?,
    };
    Ok(n_max.or(nested).map(|n| n as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Generation, String> {
        let result = Generation::read(Fields::of(&body).unwrap(), SampleConfig::at(0.8, 0), 7, 4);
        result.map_err(|error| {
            error.body()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned()
        })
    }

    #[test]
    fn defaults_are_those_of_the_server() {
        let g = read(json!({})).unwrap();
        assert_eq!((g.n, g.stream, g.params.n_predict), (1, false, None));
        assert_eq!(g.params.sample, SampleConfig::at(0.8, 7));
        assert!(g.params.cache_prompt);
    }

    #[test]
    fn the_first_name_of_a_limit_wins() {
        let n = |body| read(body).unwrap().params.n_predict;
        assert_eq!(n(json!({"max_tokens": 3})), Some(3));
        assert_eq!(
            n(json!({"max_tokens": 3, "max_completion_tokens": 4})),
            Some(4)
        );
        assert_eq!(n(json!({"max_tokens": 3, "n_predict": 5})), Some(5));
        assert_eq!(n(json!({"n_predict": -1, "max_tokens": 3})), None);
        assert_eq!(n(json!({"n_predict": null, "max_tokens": 0})), Some(0));
    }

    #[test]
    fn what_changes_nothing_is_accepted() {
        let body = json!({
            "repetition_penalty": 1.0, "presence_penalty": 0, "logit_bias": {}, "tools": [],
            "best_of": 2, "n": 2, "response_format": {"type": "text"}, "suffix": null, "user": "x",
            "min_tokens": 5, "ignore_eos": true, "stream_options": {"include_usage": true},
        });
        let g = read(body).unwrap();
        assert!(g.include_usage && g.n == 2);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for (body, name) in [
            (json!({"repeat_penalty": 1.1}), "repeat_penalty"),
            (json!({"logit_bias": {"1": 2}}), "logit_bias"),
            (json!({"grammar": "root ::= x"}), "grammar"),
            (json!({"tools": [{}]}), "tools"),
            (json!({"best_of": 3}), "best_of"),
            (json!({"suffix": "x"}), "suffix"),
            (json!({"min_tokens": 5}), "min_tokens"),
            (
                json!({"response_format": {"type": "json_object"}}),
                "response_format",
            ),
            (json!({"n": 5}), "n"),
            (json!({"temperature": -1}), "temperature"),
            (json!({"top_p": 7}), "top_p"),
            (json!({"top_k": 1.7}), "top_k"),
            (json!({"seed": "x"}), "seed"),
            (json!({"stop": [1]}), "stop"),
            (json!({"stop": ""}), "stop"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (
                json!({"stream_options": {"include_usage": 1}}),
                "include_usage",
            ),
            (json!({"speculative.n_max": 1000}), "speculative.n_max"),
            (json!({"speculative.p_min": 0.5}), "speculative.p_min"),
        ] {
            let error = read(body).unwrap_err();
            assert!(
                error.contains(&format!("field '{name}'")),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn drafts_are_limited_per_request() {
        let n = |body| read(body).unwrap().params.n_draft_max;
        assert_eq!(n(json!({})), None);
        assert_eq!(n(json!({"speculative.n_max": 0})), Some(0));
        assert_eq!(n(json!({"speculative": false})), Some(0));
        assert_eq!(n(json!({"speculative": {"n_max": 2}})), Some(2));
        assert_eq!(n(json!({"speculative": true})), None);
    }

    #[test]
    fn seeds() {
        let seed = |body| read(body).unwrap().params.sample.seed;
        assert_eq!(seed(json!({"seed": 42})), 42);
        assert_eq!(seed(json!({"seed": -1})), 7);
        assert_eq!(seed(json!({"seed": 4294967295u32})), 7);
        assert_eq!(seed(json!({"seed": 12345678901234u64})), 12345678901234);
    }
}
