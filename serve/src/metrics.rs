//! [`Metrics`]: counters in the text format of Prometheus, under the names of llama-server and vLLM.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::job::{Done, Finish};

/// Counters since the start of the server.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counts>);

#[derive(Clone, Debug, Default)]
struct Counts {
    prompt_tokens: u64,
    cached_tokens: u64,
    prompt_seconds: f64,
    predicted_tokens: u64,
    predicted_seconds: f64,
    n_steps: u64,
    /// Busy slots, summed over all steps.
    n_busy: u64,
    n_drafts: u64,
    n_drafted: u64,
    n_accepted: u64,
    /// Accepted draft tokens by position in the draft.
    accepted_at: Vec<u64>,
    n_stop: u64,
    n_length: u64,
    n_failed: u64,
    n_cancelled: u64,
    /// Values of the rates at the last scrape.
    scraped: Scraped,
}

#[derive(Clone, Copy, Debug, Default)]
struct Scraped {
    prompt_tokens: u64,
    prompt_seconds: f64,
    predicted_tokens: u64,
    predicted_seconds: f64,
}

impl Metrics {
    fn update<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a step with this many busy slots.
    pub(crate) fn stepped(&self, n_busy: usize) {
        self.update(|counts| {
            counts.n_steps += 1;
            counts.n_busy += n_busy as u64;
        });
    }

    /// Records a complete text.
    pub(crate) fn finished(&self, done: &Done) {
        self.update(|counts| {
            let timings = &done.timings;
            counts.prompt_tokens += timings.prompt_n;
            counts.cached_tokens += timings.cache_n;
            counts.prompt_seconds += timings.prompt_ms / 1e3;
            counts.predicted_tokens += timings.predicted_n;
            counts.predicted_seconds += timings.predicted_ms / 1e3;
            counts.n_drafts += done.n_drafts;
            counts.n_drafted += timings.draft_n;
            counts.n_accepted += timings.draft_n_accepted;
            let positions = &done.by_draft_position;
            if counts.accepted_at.len() < positions.len() {
                counts.accepted_at.resize(positions.len(), 0);
            }
            for (sum, [_, n_accepted]) in counts.accepted_at.iter_mut().zip(positions) {
                *sum += n_accepted;
            }
            match done.finish {
                Finish::EndOfText | Finish::Word(_) => counts.n_stop += 1,
                Finish::Length | Finish::Context => counts.n_length += 1,
            }
        });
    }

    /// Records a text that ended with an error.
    pub(crate) fn failed(&self) {
        self.update(|counts| counts.n_failed += 1);
    }

    /// Records a text whose client left.
    pub(crate) fn cancelled(&self) {
        self.update(|counts| counts.n_cancelled += 1);
    }

    /// Writes all metrics.
    pub(crate) fn render(&self, model: &str, n_busy: usize, n_waiting: usize) -> String {
        let counts = self.update(|counts| {
            let now = counts.clone();
            counts.scraped = Scraped {
                prompt_tokens: now.prompt_tokens,
                prompt_seconds: now.prompt_seconds,
                predicted_tokens: now.predicted_tokens,
                predicted_seconds: now.predicted_seconds,
            };
            now
        });
        render(&counts, model, n_busy, n_waiting)
    }
}

fn rate(n: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        n as f64 / seconds
    } else {
        0.0
    }
}

fn render(c: &Counts, model: &str, n_busy: usize, n_waiting: usize) -> String {
    let mut text = String::new();
    let mut metric = |kind: &str, name: &str, labels: &str, value: f64| {
        if !text.contains(&format!("# TYPE {name} ")) {
            let _ = writeln!(text, "# TYPE {name} {kind}");
        }
        let _ = writeln!(text, "{name}{labels} {value}");
    };
    let mut both = Vec::new();
    for (name, value) in [
        ("prompt_tokens_total", c.prompt_tokens as f64),
        ("prompt_tokens_cached_total", c.cached_tokens as f64),
        ("prompt_seconds_total", c.prompt_seconds),
        ("tokens_predicted_total", c.predicted_tokens as f64),
        ("tokens_predicted_seconds_total", c.predicted_seconds),
        ("n_decode_total", c.n_steps as f64),
    ] {
        metric("counter", &format!("llamacpp:{name}"), "", value);
    }
    for (name, value) in [
        ("spec_decode_num_drafts_total", c.n_drafts),
        ("spec_decode_num_draft_tokens_total", c.n_drafted),
        ("spec_decode_num_accepted_tokens_total", c.n_accepted),
    ] {
        both.push((name.to_owned(), String::new(), value));
    }
    for (i, &n) in c.accepted_at.iter().enumerate() {
        let name = "spec_decode_num_accepted_tokens_per_pos_total".to_owned();
        both.push((name, format!("position=\"{i}\""), n));
    }
    for (name, label, value) in &both {
        let labels = match label.is_empty() {
            true => String::new(),
            false => format!("{{{label}}}"),
        };
        metric(
            "counter",
            &format!("llamacpp:{name}"),
            &labels,
            *value as f64,
        );
    }
    let model = model.replace(['\\', '"', '\n'], "_");
    let own = format!("engine=\"0\",model_name=\"{model}\"");
    for (name, label, value) in &both {
        let labels = match label.is_empty() {
            true => format!("{{{own}}}"),
            false => format!("{{{own},{label}}}"),
        };
        metric("counter", &format!("vllm:{name}"), &labels, *value as f64);
    }
    let with_own = format!("{{{own}}}");
    metric(
        "counter",
        "vllm:prompt_tokens_total",
        &with_own,
        (c.prompt_tokens + c.cached_tokens) as f64,
    );
    metric(
        "counter",
        "vllm:generation_tokens_total",
        &with_own,
        c.predicted_tokens as f64,
    );
    for (reason, n) in [
        ("stop", c.n_stop),
        ("length", c.n_length),
        ("error", c.n_failed),
        ("abort", c.n_cancelled),
    ] {
        let labels = format!("{{{own},finished_reason=\"{reason}\"}}");
        metric("counter", "vllm:request_success_total", &labels, n as f64);
    }
    let s = &c.scraped;
    for (name, value) in [
        (
            "prompt_tokens_seconds",
            rate(
                c.prompt_tokens - s.prompt_tokens,
                c.prompt_seconds - s.prompt_seconds,
            ),
        ),
        (
            "predicted_tokens_seconds",
            rate(
                c.predicted_tokens - s.predicted_tokens,
                c.predicted_seconds - s.predicted_seconds,
            ),
        ),
        ("requests_processing", n_busy as f64),
        ("requests_deferred", n_waiting as f64),
        ("n_busy_slots_per_decode", rate(c.n_busy, c.n_steps as f64)),
    ] {
        metric("gauge", &format!("llamacpp:{name}"), "", value);
    }
    metric(
        "gauge",
        "vllm:num_requests_running",
        &with_own,
        n_busy as f64,
    );
    metric(
        "gauge",
        "vllm:num_requests_waiting",
        &with_own,
        n_waiting as f64,
    );
    text
}

#[cfg(test)]
mod tests {
    use schemas::report::Timings;

    use super::*;

    #[test]
    fn drafts_have_both_names() {
        let metrics = Metrics::default();
        metrics.stepped(2);
        metrics.finished(&Done {
            text: String::new(),
            finish: Finish::Length,
            timings: Timings {
                prompt_n: 3,
                predicted_n: 5,
                draft_n: 4,
                draft_n_accepted: 3,
                ..Timings::default()
            },
            by_draft_position: vec![[2, 2], [2, 1]],
            n_drafts: 2,
            logits_hash: None,
        });
        let text = metrics.render("a\"b", 1, 0);
        for line in [
            "# TYPE llamacpp:prompt_tokens_total counter",
            "llamacpp:prompt_tokens_total 3",
            "llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 1",
            "vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"a_b\"} 4",
            "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"a_b\",position=\"0\"} 2",
            "llamacpp:n_busy_slots_per_decode 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("# TYPE vllm:request_success_total").count(), 1);
    }
}
