//! [`Tally`]: counters of decoding, per sequence and summed.

use std::time::Duration;

use schemas::report::Timings;

use crate::speculate::SpecType;

/// Counters of one sequence, or of several.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Generated tokens.
    pub n_tokens: u64,
    /// Prompt tokens that were already in the caches.
    pub n_reused: u64,
    /// Target passes after the prompt that this sequence took part in.
    pub n_passes: u64,
    /// Entry `k`: number of passes that accepted `k` draft tokens.
    pub accepted_lengths: Vec<u64>,
    /// Drafted and accepted tokens by position in the draft.
    pub by_position: Vec<PositionCounts>,
    /// Counters by speculator.
    pub speculators: Vec<SpeculatorTally>,
    /// Time to read the prompt, up to the logits of its last token.
    pub prompt: Duration,
    /// Time after the prompt.
    pub elapsed: Duration,
    /// Bytes of target weights read by passes in that time. A pass over several sequences counts
    /// for each of them, and once in their sum.
    pub weight_bytes: u64,
}

/// Counters of one position in the draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PositionCounts {
    /// Drafts that were long enough to have this position.
    pub n_drafted: u64,
    /// Number of them accepted at this position.
    pub n_accepted: u64,
}

/// Counters of one speculator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeculatorTally {
    /// The speculator.
    pub kind: SpecType,
    /// Verified drafts.
    pub n_drafts: u64,
    /// Number of them with at least one accepted token.
    pub n_accepted_drafts: u64,
    /// Drafted tokens.
    pub n_drafted: u64,
    /// Accepted tokens.
    pub n_accepted: u64,
    /// Drafted and accepted tokens by position in the draft.
    pub by_position: Vec<PositionCounts>,
    /// Calls of `begin`, one per prompt.
    pub n_calls_begin: u64,
    /// Calls of `draft`, each for any number of sequences.
    pub n_calls_draft: u64,
    /// Calls of `accept` for its own drafts.
    pub n_calls_accept: u64,
    /// Time in [`Speculator::begin`](crate::speculate::Speculator::begin).
    pub begin: Duration,
    /// Time in `process`.
    pub process: Duration,
    /// Time in `draft`.
    pub drafting: Duration,
    /// Time in `accept`.
    pub accept: Duration,
}

impl SpeculatorTally {
    /// Returns counters of zero.
    pub(crate) fn new(kind: SpecType) -> SpeculatorTally {
        SpeculatorTally {
            kind,
            n_drafts: 0,
            n_accepted_drafts: 0,
            n_drafted: 0,
            n_accepted: 0,
            by_position: Vec::new(),
            n_calls_begin: 0,
            n_calls_draft: 0,
            n_calls_accept: 0,
            begin: Duration::ZERO,
            process: Duration::ZERO,
            drafting: Duration::ZERO,
            accept: Duration::ZERO,
        }
    }

    /// Counts a verified draft.
    pub(crate) fn draft(&mut self, n_drafted: usize, n_accepted: usize) {
        self.n_drafts += 1;
        self.n_accepted_drafts += u64::from(n_accepted > 0);
        self.n_drafted += n_drafted as u64;
        self.n_accepted += n_accepted as u64;
        count_positions(&mut self.by_position, n_drafted, n_accepted);
    }

    /// Returns the expected number of accepted tokens of a draft of this length, from the
    /// acceptance rate at each position. Each position starts with one success, so that untested
    /// positions are tried, and failed ones tried again.
    pub(crate) fn expected(&self, len: usize) -> f64 {
        let rate = |i: usize| {
            let counts = self.by_position.get(i).copied().unwrap_or_default();
            (counts.n_accepted + 1) as f64 / (counts.n_drafted + 1) as f64
        };
        (0..len).map(rate).sum()
    }
}

fn count_positions(by_position: &mut Vec<PositionCounts>, n_drafted: usize, n_accepted: usize) {
    for i in 0..n_drafted {
        let counts = entry(by_position, i);
        counts.n_drafted += 1;
        counts.n_accepted += u64::from(i < n_accepted);
    }
}

impl Tally {
    /// Counts one verified pass of a sequence.
    pub(crate) fn pass(&mut self, by: Option<SpecType>, n_drafted: usize, n_accepted: usize) {
        self.n_passes += 1;
        *entry(&mut self.accepted_lengths, n_accepted) += 1;
        count_positions(&mut self.by_position, n_drafted, n_accepted);
        if let Some(kind) = by {
            let tally = self.speculator(kind);
            tally.draft(n_drafted, n_accepted);
            tally.n_calls_accept += 1;
        }
    }

    fn speculator(&mut self, kind: SpecType) -> &mut SpeculatorTally {
        let i = match self.speculators.iter().position(|tally| tally.kind == kind) {
            Some(i) => i,
            None => {
                self.speculators.push(SpeculatorTally::new(kind));
                self.speculators.len() - 1
            }
        };
        &mut self.speculators[i]
    }

    /// Adds the counters of another sequence, except for times and bytes, which sequences share,
    /// and counters by speculator, which each speculator keeps itself.
    pub(crate) fn add_counts(&mut self, other: &Tally) {
        self.n_tokens += other.n_tokens;
        self.n_reused += other.n_reused;
        self.n_passes += other.n_passes;
        for (k, n) in other.accepted_lengths.iter().enumerate() {
            *entry(&mut self.accepted_lengths, k) += n;
        }
        for (i, counts) in other.by_position.iter().enumerate() {
            let sum = entry(&mut self.by_position, i);
            sum.n_drafted += counts.n_drafted;
            sum.n_accepted += counts.n_accepted;
        }
    }

    /// Adds the tally of later requests with the same speculators, whose own counters continue.
    pub fn add_later(&mut self, later: &Tally) {
        self.add_counts(later);
        self.prompt += later.prompt;
        self.elapsed += later.elapsed;
        self.weight_bytes += later.weight_bytes;
        self.speculators.clone_from(&later.speculators);
    }

    /// Returns the counts and times of one request with a prompt of `n_prompt` tokens, in the format of
    /// llama.cpp's server.
    pub fn timings(&self, n_prompt: usize) -> Timings {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Timings {
            cache_n: self.n_reused,
            prompt_n: (n_prompt as u64).saturating_sub(self.n_reused),
            prompt_ms: ms(self.prompt),
            predicted_n: self.n_tokens,
            predicted_ms: ms(self.elapsed),
            draft_n: self.n_drafted(),
            draft_n_accepted: self.n_accepted(),
            ..Timings::default()
        }
        .with_rates()
    }

    /// Returns the generated tokens per second; `None` before any time has passed.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        (seconds > 0.0).then(|| self.n_tokens as f64 / seconds)
    }

    /// Returns the number of drafted tokens.
    pub fn n_drafted(&self) -> u64 {
        self.by_position.iter().map(|counts| counts.n_drafted).sum()
    }

    /// Returns the number of accepted tokens.
    pub fn n_accepted(&self) -> u64 {
        self.by_position
            .iter()
            .map(|counts| counts.n_accepted)
            .sum()
    }

    /// Returns accepted over drafted tokens; `None` if nothing was drafted.
    pub fn acceptance(&self) -> Option<f64> {
        ratio(self.n_accepted(), self.n_drafted())
    }

    /// Returns the acceptance rate at one position in the draft, from 0.
    pub fn acceptance_at(&self, i: usize) -> Option<f64> {
        self.by_position
            .get(i)
            .and_then(|counts| ratio(counts.n_accepted, counts.n_drafted))
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Returns entry `i`, extending the list if necessary.
fn entry<T: Clone + Default>(items: &mut Vec<T>, i: usize) -> &mut T {
    if items.len() <= i {
        items.resize(i + 1, T::default());
    }
    &mut items[i]
}
