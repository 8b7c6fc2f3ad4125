//! Checks of a running server, from outside: equal texts for equal requests, alone and beside others, with
//! and without drafts, and consistent counters.

mod agent;
mod bench;
mod client;
mod counters;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use schemas::report::{
    Outcome, SCHEMA_VERSION, ServerCheck, ServerDifference, ServerPrompt, ServerReport, Verdict,
};
use serde_json::{Value, json};

use crate::error::Error;
use crate::prompts::{self, Prompt};
use crate::report::ratio;
pub use bench::{ServerBenchConfig, bench_server};
use client::{Client, Reply, Settings};
use counters::Counters;

/// A smaller difference of log-probabilities can come from rounding.
const NEAR_TIE: f64 = 1e-2;
/// Characters of a text that a difference shows.
const N_SHOWN: usize = 40;

/// Configuration of the checks of a server.
#[derive(Clone, Debug)]
pub struct ServerCheckConfig {
    /// Address of the server.
    pub url: String,
    /// Address of a server with the same model that must generate the same texts, such as one without
    /// speculation.
    pub url2: Option<String>,
    /// API key of both.
    pub key: Option<String>,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Maximum number of tokens to generate, for prompts without their own.
    pub n_predict: usize,
    /// Maximum number of requests at the same time.
    pub n_concurrent: usize,
}

/// A prompt with its reference text.
struct Case<'a> {
    id: &'a str,
    /// Token ids if the server can tokenize, else the text.
    prompt: Value,
    n_predict: usize,
    expected: Reply,
}

/// Checks a server.
///
/// # Errors
/// The server cannot be reached, or refuses a request.
pub fn check_server(config: &ServerCheckConfig) -> Result<ServerReport, Error> {
    prompts::check_text(&config.prompts)?;
    let client = Client::new(&config.url, config.key.clone())?;
    let other = config.url2.as_ref();
    let other = other.map(|url| Client::new(url, config.key.clone()));
    let other = other.transpose()?;
    let before = Counters::read(&client);
    let cases = config
        .prompts
        .iter()
        .map(|prompt| {
            let n_predict = prompt.n_predict.map_or(config.n_predict, usize::from);
            let text = &prompt.prompt;
            let tokens = client.tokenize(text);
            let value = tokens.map_or_else(|| json!(text), |tokens| json!(tokens));
            let expected = client.complete(&value, greedy(n_predict))?;
            Ok(Case {
                id: &prompt.id,
                prompt: value,
                n_predict,
                expected,
            })
        })
        .collect::<Result<Vec<Case<'_>>, Error>>()?;
    let grown = Counters::read(&client).zip(before);
    let grown = grown.map(|(after, before)| after.since(before));
    let reported = Counters::of(cases.iter().map(|case| &case.expected));
    let run = Run {
        client: &client,
        cases: &cases,
        n_concurrent: config.n_concurrent.max(1),
    };
    let mut checks = vec![
        run.counters(reported, grown),
        run.repeated()?,
        run.concurrent()?,
        run.streamed()?,
        run.seeded()?,
    ];
    checks.push(run.without_drafts()?);
    if let Some(other) = &other {
        checks.push(run.on(other)?);
    }
    let total = match run.counts_drafts() {
        true => reported,
        false => grown.unwrap_or(reported),
    };
    let has_failed = checks.iter().any(|check| check.outcome == Outcome::Fail);
    Ok(ServerReport {
        schema_version: SCHEMA_VERSION,
        provenance: None,
        url: config.url.clone(),
        url2: config.url2.clone(),
        model: client.model.clone(),
        version: client.version.clone(),
        n_concurrent: run.n_concurrent as u64,
        prompts: cases.iter().map(prompt_report).collect(),
        draft_n: total.n_drafted,
        draft_n_accepted: total.n_accepted,
        accept_rate: ratio(total.n_accepted, total.n_drafted),
        own: None,
        verdict: Verdict::of(!has_failed),
        checks,
    })
}

fn prompt_report(case: &Case<'_>) -> ServerPrompt {
    let reply = &case.expected;
    ServerPrompt {
        prompt_id: case.id.to_owned(),
        predicted_n: reply.n_predicted,
        predicted_per_second: reply.per_second,
        draft_n: reply.n_drafted,
        draft_n_accepted: reply.n_accepted,
        accept_rate: ratio(reply.n_accepted, reply.n_drafted),
    }
}

fn greedy(n_predict: usize) -> Settings {
    Settings {
        n_predict,
        temperature: 0.0,
        cache_prompt: false,
        is_plain: false,
        stream: false,
    }
}

/// The checks.
struct Run<'a> {
    client: &'a Client,
    cases: &'a [Case<'a>],
    n_concurrent: usize,
}

impl Run<'_> {
    /// True if the server counts drafts in its replies.
    fn counts_drafts(&self) -> bool {
        self.cases.iter().any(|case| case.expected.counts_drafts)
    }

    /// Counters of drafts are possible, and those of the replies add up to the growth of the metrics.
    fn counters(&self, reported: Counters, grown: Option<Counters>) -> ServerCheck {
        let impossible = self.cases.iter().find(|case| {
            let reply = &case.expected;
            let n_most = reply.n_predicted.map_or(u64::MAX, |n| n.saturating_sub(1));
            reply.n_accepted > reply.n_drafted || reply.n_accepted > n_most
        });
        let counted = |counters: Counters| {
            let Counters {
                n_drafted,
                n_accepted,
            } = counters;
            format!("{n_accepted} of {n_drafted} draft tokens accepted")
        };
        let (outcome, found) = match (impossible, grown) {
            (Some(case), _) => {
                let reply = &case.expected;
                let counted = counted(Counters::of([reply].into_iter()));
                let n = reply.n_predicted.unwrap_or(0);
                let id = case.id;
                (
                    Outcome::Fail,
                    format!("prompt {id}: {counted}, {n} tokens generated"),
                )
            }
            (None, Some(grown)) if !self.counts_drafts() && grown.n_drafted > 0 => (
                match grown.n_accepted > grown.n_drafted {
                    true => Outcome::Fail,
                    false => Outcome::Pass,
                },
                format!("{} in the metrics; replies count none", counted(grown)),
            ),
            (None, _) if reported.n_drafted == 0 => {
                (Outcome::NotExercised, "no reply reports drafts".to_owned())
            }
            (None, None) => (
                Outcome::Pass,
                format!("{}; no metrics to compare with", counted(reported)),
            ),
            (None, Some(grown)) => (
                match grown == reported {
                    true => Outcome::Pass,
                    false => Outcome::Fail,
                },
                format!(
                    "{}, {} of {} in the metrics",
                    counted(reported),
                    grown.n_accepted,
                    grown.n_drafted
                ),
            ),
        };
        ServerCheck {
            name: "counters".to_owned(),
            outcome,
            found,
            differences: Vec::new(),
        }
    }

    /// The same requests again, with the prompt cache.
    fn repeated(&self) -> Result<ServerCheck, Error> {
        let mut differences = Vec::new();
        for _ in 0..2 {
            for case in self.cases {
                let settings = Settings {
                    cache_prompt: true,
                    ..greedy(case.n_predict)
                };
                let reply = self.client.complete(&case.prompt, settings)?;
                differences.extend(self.difference(case, &reply, settings));
            }
        }
        Ok(self.compared("repeated, with the prompt cache", differences))
    }

    /// All requests at the same time.
    fn concurrent(&self) -> Result<ServerCheck, Error> {
        let n_requests = 2 * self.cases.len().max(self.n_concurrent);
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Ok(Vec::new()));
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= n_requests {
                    return;
                }
                let case = &self.cases[i % self.cases.len()];
                let settings = Settings {
                    cache_prompt: i.is_multiple_of(2),
                    ..greedy(case.n_predict)
                };
                let reply = self.client.complete(&case.prompt, settings);
                let difference = reply.map(|reply| self.difference(case, &reply, settings));
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                match (&mut *found, difference) {
                    (Ok(differences), Ok(difference)) => differences.extend(difference),
                    (found @ Ok(_), Err(error)) => *found = Err(error),
                    (Err(_), _) => return,
                }
            }
        };
        if !self.cases.is_empty() {
            thread::scope(|scope| {
                (0..self.n_concurrent).for_each(|_| _ = scope.spawn(work));
            });
        }
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{} requests at the same time", self.n_concurrent);
        Ok(self.compared(&name, found?))
    }

    /// The same requests as streams.
    fn streamed(&self) -> Result<ServerCheck, Error> {
        let mut differences = Vec::new();
        for case in self.cases {
            let settings = Settings {
                stream: true,
                ..greedy(case.n_predict)
            };
            let reply = self.client.complete(&case.prompt, settings)?;
            // Servers differ in the token ids that they send with a stream.
            let reply = Reply {
                tokens: Vec::new(),
                ..reply
            };
            differences.extend(self.difference(case, &reply, settings));
        }
        Ok(self.compared("streamed", differences))
    }

    /// Sampled texts of a seed, twice.
    fn seeded(&self) -> Result<ServerCheck, Error> {
        let mut differences = Vec::new();
        for case in self.cases {
            let settings = Settings {
                temperature: 0.8,
                ..greedy(case.n_predict)
            };
            let first = Case {
                expected: self.client.complete(&case.prompt, settings)?,
                prompt: case.prompt.clone(),
                ..*case
            };
            let again = self.client.complete(&case.prompt, settings)?;
            differences.extend(self.difference(&first, &again, settings));
        }
        Ok(self.compared("repeated with a seed, temperature 0.8", differences))
    }

    /// The same requests without drafts: by the request's switch, else one request per token, which
    /// leaves nothing to draft.
    fn without_drafts(&self) -> Result<ServerCheck, Error> {
        let mut differences = Vec::new();
        let mut is_honoured = self.cases.iter().any(|case| case.expected.n_drafted > 0);
        for case in self.cases {
            let settings = Settings {
                is_plain: true,
                ..greedy(case.n_predict)
            };
            let reply = self.client.complete(&case.prompt, settings)?;
            is_honoured &= reply.n_drafted == 0;
            if !is_honoured {
                break;
            }
            differences.extend(self.difference(case, &reply, settings));
        }
        if is_honoured {
            let name = "without drafts (speculative.n_max 0)";
            return Ok(self.compared(name, differences));
        }
        let name = "without drafts (one token per request)";
        let has_tokens = |case: &Case<'_>| {
            case.prompt.is_array() && (!case.expected.tokens.is_empty() || case.n_predict == 0)
        };
        if !self.cases.iter().all(has_tokens) {
            return Ok(ServerCheck {
                name: name.to_owned(),
                outcome: Outcome::NotExercised,
                found: "the server ignores speculative.n_max and returns no token ids; compare it with \
                        a server without speculation (--url2)"
                    .to_owned(),
                differences: Vec::new(),
            });
        }
        let mut differences = Vec::new();
        for case in self.cases {
            differences.extend(self.stepped(case)?);
        }
        Ok(self.compared(name, differences))
    }

    /// Generates a text with one request per token and compares it with the expected one.
    fn stepped(&self, case: &Case<'_>) -> Result<Option<ServerDifference>, Error> {
        let mut prompt = case.prompt.as_array().cloned().unwrap_or_default();
        let (mut tokens, mut text) = (Vec::new(), String::new());
        let settings = Settings {
            cache_prompt: true,
            ..greedy(1)
        };
        // A reply may be longer than requested; then it differs.
        let n = case.expected.tokens.len().min(case.n_predict);
        while tokens.len() < n {
            let reply = self.client.complete(&json!(prompt), settings)?;
            let Some(&token) = reply.tokens.first() else {
                break;
            };
            tokens.push(token);
            text += &reply.text;
            prompt.push(token.into());
        }
        let reply = Reply {
            tokens,
            text,
            ..Reply::default()
        };
        Ok(self.difference(case, &reply, greedy(case.n_predict)))
    }

    /// The same requests on another server.
    fn on(&self, other: &Client) -> Result<ServerCheck, Error> {
        let mut differences = Vec::new();
        let mut n_drafted = 0;
        for case in self.cases {
            let settings = greedy(case.n_predict);
            let reply = other.complete(&case.prompt, settings)?;
            n_drafted += reply.n_drafted;
            differences.extend(self.difference(case, &reply, settings));
        }
        let mut check = self.compared("on the second server", differences);
        check.found += &match n_drafted {
            0 => "; it drafted nothing".to_owned(),
            n => format!("; it drafted {n} tokens"),
        };
        Ok(check)
    }

    /// Returns the result of a comparison of all texts.
    fn compared(&self, name: &str, mut differences: Vec<ServerDifference>) -> ServerCheck {
        differences.sort_by(|a, b| a.prompt_id.cmp(&b.prompt_id));
        differences.dedup_by(|a, b| a.prompt_id == b.prompt_id);
        let n_prompts = self.cases.len();
        let n_same = n_prompts - differences.len();
        let is_tie = |difference: &ServerDifference| difference.is_near_tie == Some(true);
        let n_ties = differences.iter().filter(|d| is_tie(d)).count();
        let mut found = format!("{n_same} of {n_prompts} texts equal");
        if n_ties > 0 {
            found += &format!(", {n_ties} differ at a near tie");
        }
        ServerCheck {
            name: name.to_owned(),
            outcome: match (n_prompts, differences.is_empty()) {
                (0, _) => Outcome::NotExercised,
                (_, true) => Outcome::Pass,
                (_, false) => Outcome::Fail,
            },
            found,
            differences,
        }
    }

    /// Returns the first difference between a reply and the expected one.
    fn difference(
        &self,
        case: &Case<'_>,
        reply: &Reply,
        settings: Settings,
    ) -> Option<ServerDifference> {
        let (expected, found) = (&case.expected, reply);
        let by_tokens = !expected.tokens.is_empty() && !found.tokens.is_empty();
        let position = match by_tokens {
            true => n_shared(&expected.tokens, &found.tokens),
            false => n_shared(expected.text.as_bytes(), found.text.as_bytes()),
        };
        let is_same = match by_tokens {
            true => expected.tokens == found.tokens,
            false => expected.text == found.text,
        };
        if is_same {
            return None;
        }
        let at = n_shared(expected.text.as_bytes(), found.text.as_bytes());
        let shown = |text: &str| {
            let bytes = text.as_bytes().get(at..).unwrap_or_default();
            let text = String::from_utf8_lossy(bytes);
            text.chars().take(N_SHOWN).collect::<String>()
        };
        let top_gap = match (
            case.prompt.as_array(),
            by_tokens && settings.temperature == 0.0,
        ) {
            (Some(prompt), true) => {
                let mut prompt = prompt.clone();
                prompt.extend(
                    expected.tokens[..position]
                        .iter()
                        .map(|&id| Value::from(id)),
                );
                self.client.top_gap(&json!(prompt))
            }
            _ => None,
        };
        Some(ServerDifference {
            prompt_id: case.id.to_owned(),
            position: position as u64,
            expected: shown(&expected.text),
            found: shown(&found.text),
            top_gap,
            is_near_tie: top_gap.map(|gap| gap < NEAR_TIE),
            request: self.client.curl(&case.prompt, settings),
        })
    }
}

fn n_shared<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
