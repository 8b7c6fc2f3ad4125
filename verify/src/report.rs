//! The engine's counters in the format of reports.

use std::time::Duration;

use runner::cache;
use runner::model_files::Files;
use runner::speculate::{Completion, Request, Stop};
use runner::tally::{PositionCounts, SpeculatorTally, Tally};
use runner::tokenizer::ControlText;
use schemas::report::{
    Counters, DraftPosition, GenerateReport, Rollback, SCHEMA_VERSION, SpeculatorCounters,
    StopReason,
};

/// Returns the report on a generated text. The caller adds the backend, and the id of a prompt that has one.
pub fn completion(files: &Files, request: &Request, completion: &Completion) -> GenerateReport {
    GenerateReport {
        schema_version: SCHEMA_VERSION,
        model: files.model.path.display().to_string(),
        backend: String::new(),
        prompt_id: None,
        prompt_tokens: request.tokens.clone(),
        tokens: completion.tokens.clone(),
        text: files
            .tokenizer
            .decode(&completion.tokens, ControlText::Skip),
        stop: match completion.stop {
            Stop::EndOfText => StopReason::EndOfText,
            Stop::Length => StopReason::Length,
            Stop::Context => StopReason::Context,
            Stop::Interrupted => StopReason::Interrupted,
        },
        counters: counters(&completion.tally),
        timings: completion.tally.timings(request.tokens.len()),
    }
}

/// Returns the counters of one sequence, or of several.
pub fn counters(tally: &Tally) -> Counters {
    let seconds = tally.elapsed.as_secs_f64();
    let n_committed = tally.n_accepted() + tally.n_passes;
    Counters {
        n_tokens: tally.n_tokens,
        n_drafted: tally.n_drafted(),
        n_accepted: tally.n_accepted(),
        acceptance: tally.acceptance(),
        n_target_passes: tally.n_passes,
        tokens_per_target_pass: ratio(n_committed, tally.n_passes),
        accepted_lengths: tally.accepted_lengths.clone(),
        by_draft_position: positions(&tally.by_position),
        by_speculator: tally.speculators.iter().map(speculator).collect(),
        decode_ms: seconds * 1e3,
        tokens_per_s: tally.tokens_per_s(),
        gigabytes_per_s: (seconds > 0.0).then(|| tally.weight_bytes as f64 / 1e9 / seconds),
    }
}

fn speculator(tally: &SpeculatorTally) -> SpeculatorCounters {
    let n_checked = tally.n_calls_accept;
    SpeculatorCounters {
        name: tally.kind.name().to_owned(),
        n_drafts: tally.n_drafts,
        n_accepted_drafts: tally.n_accepted_drafts,
        n_drafted: tally.n_drafted,
        n_accepted: tally.n_accepted,
        mean_accepted_length: ratio(tally.n_accepted + n_checked, n_checked),
        by_draft_position: positions(&tally.by_position),
        n_calls_begin: tally.n_calls_begin,
        n_calls_draft: tally.n_calls_draft,
        n_calls_accept: tally.n_calls_accept,
        begin_ms: ms(tally.begin),
        process_ms: ms(tally.process),
        draft_ms: ms(tally.drafting),
        accept_ms: ms(tally.accept),
    }
}

/// Returns the counts of each draft position.
pub(crate) fn positions(by_position: &[PositionCounts]) -> Vec<DraftPosition> {
    let position = |counts: &PositionCounts| DraftPosition {
        n_drafted: counts.n_drafted,
        n_accepted: counts.n_accepted,
        acceptance: ratio(counts.n_accepted, counts.n_drafted),
    };
    by_position.iter().map(position).collect()
}

/// Returns the kind of rollback.
pub fn rollback(kind: cache::Rollback) -> Rollback {
    match kind {
        cache::Rollback::Truncation => Rollback::Truncation,
        cache::Rollback::States => Rollback::States,
        cache::Rollback::Checkpoint => Rollback::Checkpoint,
    }
}

/// Returns a share of a whole; `None` of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
