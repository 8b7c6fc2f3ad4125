//! [`Client`]: requests to a server with the API of llama-server or of OpenAI.

use http::Request;
use http::request::Builder;
use serde_json::{Value, json};

use super::agent::Agent;
use crate::error::Error;

/// The API of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// llama-server's `/completion`.
    Native,
    /// OpenAI's `/v1/completions`.
    OpenAi,
}

/// A server.
pub(super) struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
    pub(super) api: Api,
    /// Name of the model.
    pub(super) model: Option<String>,
    /// Version of the server.
    pub(super) version: Option<String>,
    /// Names of the speculators, if the server reports them.
    pub(super) spec_types: Vec<String>,
}

/// Settings of a completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) n_predict: usize,
    pub(super) temperature: f32,
    pub(super) cache_prompt: bool,
    /// Decode without drafts, if the server has a switch for it.
    pub(super) is_plain: bool,
    pub(super) stream: bool,
}

/// A generated text.
#[derive(Clone, Debug, Default)]
pub(super) struct Reply {
    pub(super) text: String,
    /// Token ids, if the server returns them.
    pub(super) tokens: Vec<u32>,
    pub(super) n_prompt: u64,
    pub(super) prompt_ms: f64,
    pub(super) n_predicted: Option<u64>,
    pub(super) predicted_ms: f64,
    pub(super) per_second: Option<f64>,
    /// The server counts drafts in its replies; vLLM does so in its metrics alone, unless it was started with
    /// `--per-request-spec-decode-metrics`.
    pub(super) counts_drafts: bool,
    pub(super) n_drafted: u64,
    pub(super) n_accepted: u64,
}

impl Client {
    /// Connects to a server and finds out which API it has.
    ///
    /// # Errors
    /// The server cannot be reached, or has neither API.
    pub(super) fn new(url: &str, key: Option<String>) -> Result<Client, Error> {
        let mut client = Client {
            agent: Agent::new(),
            url: url.trim_end_matches('/').trim_end_matches("/v1").to_owned(),
            key,
            api: Api::OpenAi,
            model: None,
            version: None,
            spec_types: Vec::new(),
        };
        let models = client.get("/v1/models")?;
        client.model = models["data"][0]["id"].as_str().map(str::to_owned);
        if let Ok(props) = client.get("/props") {
            client.version = props["build_info"].as_str().map(str::to_owned);
            let settings = &props["default_generation_settings"];
            if settings.is_object() {
                client.api = Api::Native;
            }
            let types = settings["params"]["speculative.types"].as_str();
            let types = types
                .unwrap_or_default()
                .split(',')
                // llama-server reports "none" even while it drafts.
                .filter(|name| !name.is_empty() && *name != "none");
            client.spec_types = types.map(str::to_owned).collect();
        } else if let Ok(version) = client.get("/version") {
            client.version = version["version"].as_str().map(str::to_owned);
        }
        Ok(client)
    }

    fn error(&self, path: &str, message: impl ToString) -> Error {
        Error::Server {
            url: self.address(path),
            message: message.to_string(),
        }
    }

    /// Gets a JSON document.
    fn get(&self, path: &str) -> Result<Value, Error> {
        let text = self.get_text(path)?;
        serde_json::from_str(&text).map_err(|error| self.error(path, error))
    }

    /// Gets a text.
    pub(super) fn get_text(&self, path: &str) -> Result<String, Error> {
        self.send(path, Request::get(self.address(path)), String::new())
    }

    /// Posts a JSON document.
    fn post(&self, path: &str, body: &Value) -> Result<String, Error> {
        let request = Request::post(self.address(path));
        let request = request.header("content-type", "application/json");
        self.send(path, request, body.to_string())
    }

    fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn send(&self, path: &str, mut request: Builder, body: String) -> Result<String, Error> {
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request
            .body(body)
            .map_err(|error| self.error(path, error))?;
        let reply = self.agent.send(request);
        let reply = reply.map_err(|error| self.error(path, error))?;
        let status = reply.status();
        if !status.is_success() {
            let short: String = reply.body().chars().take(200).collect();
            return Err(self.error(path, format!("status {status}: {short}")));
        }
        Ok(reply.into_body())
    }

    /// Returns the token ids of a text; `None` if the server has no tokenizer endpoint.
    pub(super) fn tokenize(&self, text: &str) -> Option<Vec<u32>> {
        // The names of llama-server and of vLLM.
        let body = match self.api {
            Api::Native => json!({"content": text, "add_special": true}),
            Api::OpenAi => json!({"prompt": text, "add_special_tokens": true, "model": self.model}),
        };
        let reply = self.post("/tokenize", &body).ok()?;
        let reply: Value = serde_json::from_str(&reply).ok()?;
        ids(&reply["tokens"])
    }

    /// Returns the path and the body of a completion request.
    fn request(&self, prompt: &Value, settings: Settings) -> (&'static str, Value) {
        let Settings {
            n_predict,
            temperature,
            cache_prompt,
            is_plain,
            stream,
        } = settings;
        let (path, mut body) = match self.api {
            Api::Native => (
                "/completion",
                json!({
                    "prompt": prompt, "n_predict": n_predict, "return_tokens": true,
                    "cache_prompt": cache_prompt,
                }),
            ),
            Api::OpenAi => (
                "/v1/completions",
                json!({
                    "model": self.model, "prompt": prompt, "max_tokens": n_predict,
                    "return_token_ids": true, "top_p": 1.0, "repetition_penalty": 1.0,
                }),
            ),
        };
        body["temperature"] = f64::from(temperature).into();
        body["seed"] = 1.into();
        if is_plain {
            body["speculative.n_max"] = 0.into();
        }
        if stream {
            body["stream"] = true.into();
        }
        (path, body)
    }

    /// Replies to a user message with the model's chat template.
    pub(super) fn chat(&self, message: &str, settings: Settings) -> Result<Reply, Error> {
        let path = "/v1/chat/completions";
        let mut body = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": message}],
            "max_tokens": settings.n_predict,
            "temperature": f64::from(settings.temperature),
            "seed": 42,
            "return_token_ids": true,
        });
        if self.api == Api::Native {
            body["cache_prompt"] = settings.cache_prompt.into();
        }
        if settings.is_plain {
            body["speculative.n_max"] = 0.into();
        }
        let reply = self.post(path, &body)?;
        let reply: Value = serde_json::from_str(&reply).map_err(|error| self.error(path, error))?;
        let choice = &reply["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap_or_default();
        Ok(Reply {
            text: text.to_owned(),
            tokens: ids(&choice["token_ids"]).unwrap_or_default(),
            ..counts(&reply)
        })
    }

    /// Returns a completion request as a command line.
    pub(super) fn curl(&self, prompt: &Value, settings: Settings) -> String {
        let (path, body) = self.request(prompt, settings);
        let body = body.to_string().replace('\'', "'\\''");
        format!(
            "curl {}{path} -H 'content-type: application/json' -d '{body}'",
            self.url
        )
    }

    /// Continues a prompt: a text or token ids.
    pub(super) fn complete(&self, prompt: &Value, settings: Settings) -> Result<Reply, Error> {
        let (path, body) = self.request(prompt, settings);
        let text = self.post(path, &body)?;
        let parse = |text: &str| {
            serde_json::from_str::<Value>(text).map_err(|error| self.error(path, error))
        };
        if !settings.stream {
            return Ok(self.reply(&parse(&text)?));
        }
        let mut whole = Reply::default();
        let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
        for event in events.filter(|event| event.trim() != "[DONE]") {
            let event = parse(event)?;
            if !event["error"].is_null() {
                return Err(self.error(path, &event["error"]));
            }
            let piece = self.reply(&event);
            whole.text += &piece.text;
            // The last event of llama-server repeats all tokens.
            if event["stop"] != true {
                whole.tokens.extend(piece.tokens);
            }
        }
        Ok(whole)
    }

    fn reply(&self, reply: &Value) -> Reply {
        let (text, tokens) = match self.api {
            Api::Native => (&reply["content"], &reply["tokens"]),
            Api::OpenAi => {
                let choice = &reply["choices"][0];
                (&choice["text"], &choice["token_ids"])
            }
        };
        Reply {
            text: text.as_str().unwrap_or_default().to_owned(),
            tokens: ids(tokens).unwrap_or_default(),
            ..counts(reply)
        }
    }

    /// Returns the log-probability of the most likely next token minus that of the second; `None` if the
    /// server returns none.
    pub(super) fn top_gap(&self, prompt: &Value) -> Option<f64> {
        let settings = Settings {
            n_predict: 1,
            temperature: 0.0,
            cache_prompt: false,
            is_plain: false,
            stream: false,
        };
        let (path, mut body) = self.request(prompt, settings);
        let mut top: Vec<f64> = match self.api {
            Api::Native => {
                body["n_probs"] = 2.into();
                let reply: Value = serde_json::from_str(&self.post(path, &body).ok()?).ok()?;
                let top = reply["completion_probabilities"][0]["top_logprobs"].as_array()?;
                top.iter()
                    .filter_map(|entry| entry["logprob"].as_f64())
                    .collect()
            }
            Api::OpenAi => {
                body["logprobs"] = 2.into();
                let reply: Value = serde_json::from_str(&self.post(path, &body).ok()?).ok()?;
                let top = reply["choices"][0]["logprobs"]["top_logprobs"][0].as_object()?;
                top.values().filter_map(Value::as_f64).collect()
            }
        };
        top.sort_by(|a, b| b.total_cmp(a));
        Some(top.first()? - top.get(1)?)
    }
}

/// Reads the counts and times of a reply: llama-server's `timings`, or vLLM's `metrics`.
fn counts(reply: &Value) -> Reply {
    let (timings, usage) = (&reply["timings"], &reply["usage"]);
    let timing = |name: &str| timings[name].as_u64();
    let drafts = &reply["metrics"]["speculative_decoding"];
    let draft = |own: &str, name: &str| timing(own).or(drafts[name].as_u64()).unwrap_or(0);
    let time = |name: &str| timings[name].as_f64().unwrap_or(0.0);
    Reply {
        n_prompt: timing("prompt_n")
            .or(usage["prompt_tokens"].as_u64())
            .unwrap_or(0),
        prompt_ms: time("prompt_ms"),
        n_predicted: timing("predicted_n").or(usage["completion_tokens"].as_u64()),
        predicted_ms: time("predicted_ms"),
        per_second: timings["predicted_per_second"].as_f64(),
        counts_drafts: timings.is_object() || drafts.is_object(),
        n_drafted: draft("draft_n", "num_draft_tokens"),
        n_accepted: draft("draft_n_accepted", "num_accepted_tokens"),
        ..Reply::default()
    }
}

/// Reads token ids.
fn ids(value: &Value) -> Option<Vec<u32>> {
    let ids = value.as_array()?.iter();
    ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect()
}
