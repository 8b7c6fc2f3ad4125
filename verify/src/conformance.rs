//! Runs the traces of the conformance kit, and compares the results with the expected ones.

use std::sync::Arc;

use kernels::backend::Backend;
use runner::hash::LogitsHash;
use runner::loaded_models::load_driver;
use runner::model_files::Files;
use runner::run_config::RunConfig;
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{
    DecodeConfig, DraftConfig, Request, RoundEvent, SpecType, TextConfig, TokenEvent,
};
use schemas::report::{ConformanceRound, ConformanceTrace, ExpectedTrace, PositionLogits};

use crate::error::Error;
use crate::logits::position;

/// Number of logits that a trace lists for each token.
const N_TOP: usize = 5;

/// Maximum difference of a logit in another engine. Engines that round activations to the 11 significant bits
/// of F16 weights are within it on the models of the kit (conformance/README.md has the measured differences).
const TOLERANCE: f32 = 0.02;

/// Decodes the prompt of a trace and returns the result.
///
/// # Errors
/// A speculator is unknown or failed, or a model cannot be used.
pub fn trace<B: Backend>(
    backend: &Arc<B>,
    files: &Files,
    trace: &ConformanceTrace,
) -> Result<ExpectedTrace, Error> {
    let spec_types = trace.spec_types.iter();
    let spec_types: Result<Vec<_>, _> = spec_types.map(|name| SpecType::by_name(name)).collect();
    let requests = [Request::new(
        "the trace",
        trace.prompt.clone(),
        trace.n_predict,
    )];
    let config = RunConfig {
        drafting: DraftConfig::of_length(trace.n_draft_max),
        ..RunConfig::new(spec_types?, files.n_ctx(&requests, None))
    };
    let mut driver = load_driver(files, backend, &config)?;

    let mut hash = LogitsHash::new();
    let mut logits: Vec<PositionLogits> = Vec::new();
    let mut rounds: Vec<ConformanceRound> = Vec::new();
    let mut failure = None;
    let mut keep_logits = |event: TokenEvent<'_>| {
        let row = event.logits.expect("the text asks for logits");
        hash.update(row);
        logits.push(position(row, N_TOP));
    };
    let mut keep_round = |event: &RoundEvent<'_>| {
        rounds.push(ConformanceRound {
            position: event.position,
            drafter: event.drafter.map(|kind| kind.name().to_owned()),
            drafted: event.drafted.to_vec(),
            n_accepted: event.n_accepted,
            committed: Vec::new(),
        });
    };
    let text = TextConfig {
        ignore_end: true,
        logits: true,
        ..TextConfig::new(Sampler::new(SampleConfig::GREEDY)?)
    };
    let is_end = |token| files.tokenizer.is_end_of_generation(token);
    let mut decode = DecodeConfig {
        on_token: Some(&mut keep_logits),
        on_round: Some(&mut keep_round),
        on_failure: Some(&mut |event| failure = Some(event.error)),
        ..DecodeConfig::new(text, &is_end)
    };
    let (mut completions, _) = driver.decode(&requests, &mut decode)?;
    if let Some(error) = failure {
        return Err(error.into());
    }
    files.check_unchanged()?;
    let tokens = completions.swap_remove(0).tokens;
    // The first token comes from the pass over the prompt. The last pass may accept more than was requested.
    let mut rest = tokens.get(1..).unwrap_or_default();
    for round in &mut rounds {
        let n = rest.len().min(round.n_accepted + 1);
        let (committed, after) = rest.split_at(n);
        round.committed = committed.to_vec();
        rest = after;
    }
    let lead = |row: &PositionLogits| match row.top.as_slice() {
        [first, second, ..] => first.logit - second.logit,
        _ => f32::INFINITY,
    };
    Ok(ExpectedTrace {
        tolerance: TOLERANCE,
        min_lead: logits.iter().map(lead).fold(f32::INFINITY, f32::min),
        n_drafted: rounds.iter().map(|round| round.drafted.len()).sum(),
        n_accepted: rounds.iter().map(|round| round.n_accepted).sum(),
        tokens,
        rounds,
        logits_hash: hash.to_string(),
        logits,
    })
}

/// Describes the first difference of a result from the expected one; `None` if they are equal.
pub fn difference(found: &ExpectedTrace, expected: &ExpectedTrace) -> Option<String> {
    let rows = found.logits.iter().zip(&expected.logits);
    for (i, (row, other)) in rows.enumerate() {
        if row.logits_hash != other.logits_hash {
            let (hash, other_hash) = (&row.logits_hash, &other.logits_hash);
            return Some(format!(
                "token {i}: logits hash {hash}, expected {other_hash}; {}",
                distance(row, other)
            ));
        }
    }
    if found.tokens != expected.tokens {
        let (n, m) = (found.tokens.len(), expected.tokens.len());
        return Some(match shared(&found.tokens, &expected.tokens) {
            i if i < n.min(m) => {
                let (token, other) = (found.tokens[i], expected.tokens[i]);
                format!("token {i} is {token}, expected {other}")
            }
            _ => format!("{n} tokens, expected {m}"),
        });
    }
    let i = shared(&found.rounds, &expected.rounds);
    match (found.rounds.get(i), expected.rounds.get(i)) {
        (None, None) => None,
        (round, other) => Some(format!(
            "pass {i}: {}, expected {}",
            described(round),
            described(other)
        )),
    }
}

/// Describes the largest difference of two rows among the logits that both list.
fn distance(row: &PositionLogits, other: &PositionLogits) -> String {
    let logit = |id| row.top.iter().find(|top| top.id == id);
    let pairs = other.top.iter();
    let pairs = pairs.filter_map(|top| Some((top.logit - logit(top.id)?.logit).abs()));
    match pairs.reduce(f32::max) {
        Some(most) => format!("listed logits differ by up to {most:.1e}"),
        None => "no listed token is the same".to_owned(),
    }
}

fn described(round: Option<&ConformanceRound>) -> String {
    match round {
        None => "no pass".to_owned(),
        Some(round) => format!(
            "{} of {} drafted tokens accepted at position {} ({})",
            round.n_accepted,
            round.drafted.len(),
            round.position,
            round.drafter.as_deref().unwrap_or("no drafter")
        ),
    }
}

/// Returns the length of the shared prefix.
fn shared<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use schemas::report::TokenLogit;

    use super::*;

    fn expected() -> ExpectedTrace {
        let row = PositionLogits {
            logits_hash: "00".to_owned(),
            top: vec![TokenLogit { id: 7, logit: 2.0 }],
        };
        let round = ConformanceRound {
            position: 3,
            drafter: Some("draft-mtp".to_owned()),
            drafted: vec![8, 9],
            n_accepted: 1,
            committed: vec![8, 5],
        };
        ExpectedTrace {
            tolerance: TOLERANCE,
            min_lead: 1.0,
            tokens: vec![7, 8, 5],
            n_drafted: 2,
            n_accepted: 1,
            rounds: vec![round],
            logits_hash: "00".to_owned(),
            logits: vec![row; 3],
        }
    }

    #[test]
    fn the_first_difference_is_described() {
        let change = |edit: fn(&mut ExpectedTrace)| {
            let mut found = expected();
            edit(&mut found);
            difference(&found, &expected())
        };
        assert_eq!(change(|_| ()), None);
        let logits = change(|found| {
            found.logits[1].logits_hash = "01".to_owned();
            found.logits[1].top[0].logit = 2.5;
        });
        let message = "token 1: logits hash 01, expected 00; listed logits differ by up to 5.0e-1";
        assert_eq!(logits.as_deref(), Some(message));
        let token = change(|found| found.tokens[2] = 6);
        assert_eq!(token.as_deref(), Some("token 2 is 6, expected 5"));
        let short = change(|found| found.tokens.truncate(2));
        assert_eq!(short.as_deref(), Some("2 tokens, expected 3"));
        let round = change(|found| found.rounds[0].n_accepted = 0);
        let message = "pass 0: 0 of 2 drafted tokens accepted at position 3 (draft-mtp), \
                       expected 1 of 2 drafted tokens accepted at position 3 (draft-mtp)";
        assert_eq!(round.as_deref(), Some(message));
        let missing = change(|found| found.rounds.clear());
        let expected_round = message.split_once("expected ").unwrap().1;
        let message = format!("pass 0: no pass, expected {expected_round}");
        assert_eq!(missing, Some(message));
    }
}
