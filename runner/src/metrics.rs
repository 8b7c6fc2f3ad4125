//! [`Tally`]: what decoding counts, by sequence and summed.

use std::time::Duration;

use schemas::report;

use crate::speculate::SpecType;

/// Counts of one sequence, or of several.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Tokens written.
    pub n_tokens: u64,
    /// Passes of the target behind the prompt that this sequence took part in.
    pub n_passes: u64,
    /// Entry `k`: passes that accepted `k` draft tokens.
    pub accepted_lengths: Vec<u64>,
    /// Drafted and accepted tokens by place in the draft.
    pub places: Vec<Place>,
    /// By speculator.
    pub speculators: Vec<SpeculatorTally>,
    /// Time behind the prompt.
    pub elapsed: Duration,
    /// Bytes of target weights that passes read in that time. A pass over several sequences counts
    /// for each of them, and once in their sum.
    pub weight_bytes: u64,
}

/// How one place in the draft fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Drafts that reached it.
    pub n_drafted: u64,
    /// Of those, accepted here.
    pub n_accepted: u64,
}

/// How one speculator fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculatorTally {
    /// Which.
    pub kind: SpecType,
    /// Drafts that were not empty.
    pub n_drafts: u64,
    /// Draft tokens.
    pub n_drafted: u64,
    /// Of those, accepted.
    pub n_accepted: u64,
}

impl Tally {
    /// Counts one verified pass of a sequence.
    pub(crate) fn pass(&mut self, by: Option<SpecType>, n_drafted: usize, n_accepted: usize) {
        self.n_passes += 1;
        *entry(&mut self.accepted_lengths, n_accepted) += 1;
        for i in 0..n_drafted {
            let place = entry(&mut self.places, i);
            place.n_drafted += 1;
            place.n_accepted += u64::from(i < n_accepted);
        }
        if let Some(kind) = by {
            let tally = self.speculator(kind);
            tally.n_drafts += 1;
            tally.n_drafted += n_drafted as u64;
            tally.n_accepted += n_accepted as u64;
        }
    }

    fn speculator(&mut self, kind: SpecType) -> &mut SpeculatorTally {
        let i = match self.speculators.iter().position(|tally| tally.kind == kind) {
            Some(i) => i,
            None => {
                let (n_drafts, n_drafted, n_accepted) = (0, 0, 0);
                self.speculators.push(SpeculatorTally {
                    kind,
                    n_drafts,
                    n_drafted,
                    n_accepted,
                });
                self.speculators.len() - 1
            }
        };
        &mut self.speculators[i]
    }

    /// Adds the counts of another sequence. Times and bytes are not added: sequences share them.
    pub(crate) fn add_counts(&mut self, other: &Tally) {
        self.n_tokens += other.n_tokens;
        self.n_passes += other.n_passes;
        for (k, n) in other.accepted_lengths.iter().enumerate() {
            *entry(&mut self.accepted_lengths, k) += n;
        }
        for (i, place) in other.places.iter().enumerate() {
            let sum = entry(&mut self.places, i);
            sum.n_drafted += place.n_drafted;
            sum.n_accepted += place.n_accepted;
        }
        for tally in &other.speculators {
            let sum = self.speculator(tally.kind);
            sum.n_drafts += tally.n_drafts;
            sum.n_drafted += tally.n_drafted;
            sum.n_accepted += tally.n_accepted;
        }
    }

    /// Draft tokens of all places.
    pub fn n_drafted(&self) -> u64 {
        self.places.iter().map(|place| place.n_drafted).sum()
    }

    /// Accepted draft tokens.
    pub fn n_accepted(&self) -> u64 {
        self.places.iter().map(|place| place.n_accepted).sum()
    }

    /// Accepted over drafted; `None` if nothing was drafted.
    pub fn acceptance(&self) -> Option<f64> {
        ratio(self.n_accepted(), self.n_drafted())
    }

    /// The same at one place in the draft, the first token at 0.
    pub fn acceptance_at(&self, i: usize) -> Option<f64> {
        self.places
            .get(i)
            .and_then(|place| ratio(place.n_accepted, place.n_drafted))
    }

    /// The counts as reports give them.
    pub fn report(&self) -> report::Counters {
        let seconds = self.elapsed.as_secs_f64();
        let per_second = |x: f64| (seconds > 0.0).then(|| x / seconds);
        report::Counters {
            n_tokens: self.n_tokens,
            n_drafted: self.n_drafted(),
            n_accepted: self.n_accepted(),
            acceptance: self.acceptance(),
            n_target_passes: self.n_passes,
            tokens_per_target_pass: ratio(self.n_accepted() + self.n_passes, self.n_passes),
            accepted_lengths: self.accepted_lengths.clone(),
            by_draft_position: self
                .places
                .iter()
                .map(|place| report::DraftPosition {
                    n_drafted: place.n_drafted,
                    n_accepted: place.n_accepted,
                    acceptance: ratio(place.n_accepted, place.n_drafted),
                })
                .collect(),
            by_speculator: self
                .speculators
                .iter()
                .map(|tally| report::SpeculatorCounters {
                    name: tally.kind.name().to_owned(),
                    n_drafts: tally.n_drafts,
                    n_drafted: tally.n_drafted,
                    n_accepted: tally.n_accepted,
                })
                .collect(),
            decode_ms: seconds * 1e3,
            tokens_per_s: per_second(self.n_tokens as f64),
            gigabytes_per_s: per_second(self.weight_bytes as f64 / 1e9),
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Entry `i`, made if it is not there yet.
fn entry<T: Clone + Default>(items: &mut Vec<T>, i: usize) -> &mut T {
    if items.len() <= i {
        items.resize(i + 1, T::default());
    }
    &mut items[i]
}
