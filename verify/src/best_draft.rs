//! The speculator and the draft length that a report recommends.

use schemas::report::{Outcome, SpeculatorVerdict, VerifyReport};

/// Returns the speculator with the largest speedup among those that passed and drafted, or with the most tokens
/// per pass where no speed was measured.
pub fn best_speculator(report: &VerifyReport) -> Option<&SpeculatorVerdict> {
    let passed = report.speculators.iter().filter(|speculator| {
        speculator.verdict == Outcome::Pass && speculator.counters.n_drafted > 0
    });
    passed.max_by(|a, b| gain(a).total_cmp(&gain(b)))
}

fn gain(speculator: &SpeculatorVerdict) -> f64 {
    let per_pass = speculator.counters.tokens_per_target_pass;
    speculator.speedup.or(per_pass).unwrap_or_default()
}

/// Returns the draft length with the most tokens per second, in tokens: the largest `(1 + a(1) + .. + a(n)) / (T(n +
/// 1) + d n)`, with the share `a(k)` of drafts whose first `k` tokens were accepted, the time `T` of a pass, and
/// the time `d` of drafting a token. The length of the run is returned if passes were not timed.
///
/// Lengths above that of the run were not measured, so it is the largest result.
pub fn best_length(report: &VerifyReport, speculator: &SpeculatorVerdict) -> u32 {
    let counters = &speculator.counters;
    let drafting: f64 = counters
        .by_speculator
        .iter()
        .map(|own| own.draft_ms + own.process_ms + own.accept_ms)
        .sum();
    let draft_ms = drafting / counters.n_drafted.max(1) as f64;
    let positions = counters.by_draft_position.iter();
    let shares = positions.map(|p| p.n_accepted as f64 / p.n_drafted.max(1) as f64);
    let mut tokens = 1.0;
    let mut best = None;
    for (i, (share, cost)) in shares
        .zip(report.widths.iter().skip(1))
        .take(report.n_draft_max as usize)
        .enumerate()
    {
        tokens += share;
        let n = i as u32 + 1;
        let rate = tokens / (cost.pass_ms + draft_ms * f64::from(n));
        if best.is_none_or(|(_, highest)| rate > highest) {
            best = Some((n, rate));
        }
    }
    best.map_or(report.n_draft_max, |(n, _)| n)
}
