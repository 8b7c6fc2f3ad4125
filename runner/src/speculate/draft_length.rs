//! [`DraftLengthController`]: chooses the draft length from the cost of drafts and their acceptance
//! rate.
//!
//! A round of `m` sequences with drafts of `k` tokens takes T(m (1 + k)) for the target's pass and
//! D(k) for the drafts, and produces m (1 + P1 + .. + Pk) tokens, where Pi is the share of drafts
//! whose first `i` tokens are accepted. All of these are measured while decoding. The length with
//! the most tokens per second is drafted, which may be zero.
//!
//! If the machine becomes faster or slower, all measured times are scaled ([`SpeedDrift`]).
//!
//! Estimates can be wrong, so there is a budget as well. The loss is the time spent on drafting,
//! less the time that the accepted tokens would have taken without drafts; it may grow to a small
//! share of the total time. A draft length is allowed only if the loss stays within this limit even
//! if nothing is accepted. A run is therefore at most slightly slower than plain decoding plus the
//! time drafters take to process the text.
//!
//! A drafter that does not pay is probed from time to time, with several drafts, because the first
//! ones after a pause are slow.

use super::SpecType;
use super::latency_model::{CHANGED, LatencyCurve, SpeedDrift};
use super::lazy_draft_context::IDLE_LIMIT;

/// Share of the total time that drafting may lose.
const TOLERANCE: f64 = 0.01;
/// Loss allowed from the start, in passes of plain decoding.
const ALLOWANCE: f64 = 1.5;
/// Rounds between two probes of a drafter that does not pay.
const PROBE_EVERY: u32 = 128;
/// Drafts per probe; the first ones after a pause are slow and not representative. After a pause of
/// as many rounds, the evaluation of missed tokens takes noticeable time.
const PROBE_ROUNDS: u32 = 4;
/// Measurements of plain decoding before anything is drafted: the first one is often slow.
const PLAIN_FIRST: usize = 2;
/// Factor by which the weight of earlier drafts decays with each verified draft.
const DECAY: f64 = 0.97;
/// Assumed acceptance rate of the first token before anything is known.
const FIRST_GUESS: f64 = 0.8;
/// Weight of the prior in drafts; the prior of a later position is the rate of the position before
/// it.
const GUESS_WEIGHT: f64 = 2.0;

/// Controller of the draft length.
#[derive(Clone, Debug, Default)]
pub struct DraftLengthController {
    passes: LatencyCurve,
    drift: SpeedDrift,
    drafters: Vec<Drafter>,
    loss: LossBudget,
    /// Seconds of this round's drafts, without the tokens evaluated after a pause.
    drafting: f64,
    catching_up: f64,
    /// Rounds since plain decoding was last measured.
    n_rounds: u32,
}

/// Time spent on drafting and time gained by it, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct LossBudget {
    /// Time of all rounds.
    elapsed: f64,
    /// Time spent on drafting less time saved; negative for a gain.
    lost: f64,
}

impl LossBudget {
    /// Returns the seconds that a round may lose, if a round of plain decoding takes `plain`.
    fn budget(self, plain: f64) -> f64 {
        TOLERANCE * self.elapsed + ALLOWANCE * plain - self.lost
    }
}

#[derive(Clone, Debug)]
struct Drafter {
    kind: SpecType,
    /// Cost of drafts by their length, one curve per number of sequences.
    drafts: Vec<LatencyCurve>,
    /// Additional cost of the first draft after a pause, by its length in rounds: missed tokens are
    /// evaluated.
    catching_up: LatencyCurve,
    acceptance: AcceptanceByPosition,
    /// Rounds since its last draft.
    n_idle: u32,
    /// Drafts left in the current probe.
    n_probe: u32,
}

/// Recent acceptance rate at each position, among drafts whose earlier tokens were all accepted.
#[derive(Clone, Debug, Default)]
struct AcceptanceByPosition {
    /// By position: drafts accepted there, and all drafts accepted up to there.
    positions: Vec<[f64; 2]>,
}

/// Measurements of one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Number of sequences.
    pub n_seq: usize,
    /// Tokens of the target's pass.
    pub width: usize,
    /// Number of committed tokens.
    pub n_written: usize,
    /// Seconds of the target's pass.
    pub pass: f64,
    /// Seconds of the speculators' other work, which does not depend on drafting.
    pub following: f64,
}

impl AcceptanceByPosition {
    fn record(&mut self, n_drafted: usize, n_accepted: usize) {
        if self.positions.len() < n_drafted {
            self.positions.resize(n_drafted, [0.0; 2]);
        }
        let reached = n_drafted.min(n_accepted + 1);
        for (i, [right, all]) in self.positions[..reached].iter_mut().enumerate() {
            *right = *right * DECAY + f64::from(u8::from(i < n_accepted));
            *all = *all * DECAY + 1.0;
        }
    }

    /// The expected number of accepted tokens, by draft length from 1 on.
    fn expected(&self) -> impl Iterator<Item = f64> {
        let (mut rate, mut chance, mut sum) = (FIRST_GUESS, 1.0, 0.0);
        let positions = self
            .positions
            .iter()
            .copied()
            .chain(std::iter::repeat([0.0; 2]));
        positions.map(move |[right, all]| {
            rate = (right + GUESS_WEIGHT * rate) / (all + GUESS_WEIGHT);
            chance *= rate;
            sum += chance;
            sum
        })
    }
}

/// Returns the draft length up to `n_max` with the most tokens per second. `pass(k)` are the
/// seconds of a pass over drafts of that length, `draft(k)` those of drafting, and `expected` the
/// expected accepted tokens by length from 1 on.
pub fn best_length(
    n_max: usize,
    pass: impl Fn(usize) -> f64,
    draft: impl Fn(usize) -> f64,
    expected: impl Iterator<Item = f64>,
) -> usize {
    let (mut best, mut most) = (0, 1.0 / pass(0));
    for (k, n_accepted) in (1..=n_max).zip(expected) {
        let speed = (1.0 + n_accepted) / (pass(k) + draft(k));
        if speed > most {
            (best, most) = (k, speed);
        }
    }
    best
}

impl DraftLengthController {
    /// Returns the draft length for each of `n_seq` sequences, at most `n_max`.
    pub fn length(&mut self, kind: SpecType, n_seq: usize, n_max: usize) -> usize {
        let width = |k: usize| n_seq * (1 + k);
        let Some(plain) = self.passes.seconds(n_seq) else {
            return 0;
        };
        if n_max == 0 {
            return 0;
        }
        // The gain is known only relative to the time of plain decoding, which is measured again
        // after twice as many rounds each time.
        let n_plain = self.passes.n_recent(n_seq);
        if n_plain < PLAIN_FIRST || self.n_rounds >= 1 << n_plain {
            return 0;
        }
        let passes = &self.passes;
        let pass = |k| passes.seconds(width(k)).unwrap_or(plain);
        let drafter = drafter(&mut self.drafters, kind);
        let curve = curve(&mut drafter.drafts, n_seq);
        let draft = |k| curve.seconds(k).unwrap_or(0.0);
        let catching_up = match drafter.n_idle > PROBE_ROUNDS {
            true => drafter.catching_up.seconds(about(drafter.n_idle)),
            false => None,
        };
        let budget = self.loss.budget(plain) - catching_up.unwrap_or(0.0);
        // Untested widths are approached step by step.
        let n_max = n_max.min((2 * passes.widest() / n_seq).saturating_sub(1));
        let is_within = |&k: &usize| pass(k) + draft(k) - plain <= budget;
        let n_max = (1..=n_max).rev().find(is_within).unwrap_or(0);
        let best = best_length(n_max, pass, draft, drafter.acceptance.expected());
        // No pass is faster than a narrower one: the time of the narrower one is outdated.
        if CHANGED * pass(best) < plain {
            return 0;
        }
        if best > 0 {
            return best;
        }
        // A drafter that has just evaluated a prompt has nothing to catch up with.
        let is_due = drafter.n_idle == 0 || drafter.n_idle >= PROBE_EVERY;
        if drafter.n_probe == 0 && !is_due {
            return 0;
        }
        // Conditions may have changed; probes if the cost is acceptable.
        let prior = AcceptanceByPosition::default();
        let length = best_length(n_max, pass, draft, prior.expected()).max(1);
        if !is_within(&length) {
            return 0;
        }
        if drafter.n_probe == 0 {
            drafter.n_probe = PROBE_ROUNDS;
        }
        drafter.n_probe -= 1;
        length
    }

    /// Records that a drafter took `seconds` to draft up to `n` tokens, possibly none, for each of
    /// `n_seq` sequences.
    pub fn drafted(&mut self, kind: SpecType, n_seq: usize, n: usize, seconds: f64) {
        if n == 0 {
            self.drafting += seconds;
            return;
        }
        let drafter = drafter(&mut self.drafters, kind);
        let n_idle = std::mem::take(&mut drafter.n_idle);
        let curve = curve(&mut drafter.drafts, n_seq);
        let usual = curve.seconds(n);
        match usual.filter(|_| n_idle > PROBE_ROUNDS) {
            // After a pause it had more tokens to evaluate than usual.
            Some(usual) => {
                let (n, more) = (about(n_idle), (seconds - usual).max(0.0));
                drafter.catching_up.record(n, more);
                self.drafting += usual.min(seconds);
                self.catching_up += charged(more, drafter.catching_up.seconds(n));
            }
            None => {
                // An empty draft takes no time.
                curve.record(0, 0.0);
                curve.record(n, seconds);
                self.drafting += charged(seconds, curve.seconds(n));
            }
        }
    }

    /// Records how many tokens of a draft were accepted.
    pub fn verified(&mut self, kind: SpecType, n_drafted: usize, n_accepted: usize) {
        let drafter = drafter(&mut self.drafters, kind);
        drafter.acceptance.record(n_drafted, n_accepted);
    }

    /// Scales all measurements after the machine became slower by `factor`.
    fn scale(&mut self, factor: f64) {
        self.passes.scale(factor);
        for drafter in &mut self.drafters {
            let curves = drafter.drafts.iter_mut().chain([&mut drafter.catching_up]);
            curves.for_each(|curve| curve.scale(factor));
        }
        self.loss.elapsed *= factor;
        self.loss.lost *= factor;
    }

    /// Records that all drafters have evaluated all tokens, as after a prompt.
    pub fn caught_up(&mut self) {
        for drafter in &mut self.drafters {
            drafter.n_idle = 0;
        }
    }

    /// Records a round.
    pub fn record_round(&mut self, round: Round) {
        let Round {
            n_seq,
            width,
            n_written,
            pass,
            following,
        } = round;
        let drafting = std::mem::take(&mut self.drafting);
        let catching_up = std::mem::take(&mut self.catching_up);
        if let Some(change) = self.drift.record(&self.passes, width, pass) {
            self.scale(change);
        }
        self.passes.record(width, pass);
        self.n_rounds += 1;
        for drafter in &mut self.drafters {
            drafter.n_idle = drafter.n_idle.saturating_add(1);
        }
        let Some(plain) = self.passes.seconds(n_seq) else {
            return;
        };
        let pass = charged(pass, self.passes.seconds(width));
        let lost = match width == n_seq {
            true => drafting,
            false => pass + drafting - plain * n_written as f64 / n_seq as f64,
        };
        if width == n_seq {
            self.n_rounds = 0;
        }
        self.loss.elapsed += pass + drafting + catching_up + following;
        self.loss.lost += lost + catching_up;
    }
}

fn drafter(drafters: &mut Vec<Drafter>, kind: SpecType) -> &mut Drafter {
    let i = match drafters.iter().position(|drafter| drafter.kind == kind) {
        Some(i) => i,
        None => {
            drafters.push(Drafter {
                kind,
                drafts: Vec::new(),
                catching_up: LatencyCurve::default(),
                acceptance: AcceptanceByPosition::default(),
                n_idle: 0,
                n_probe: PROBE_ROUNDS,
            });
            drafters.len() - 1
        }
    };
    &mut drafters[i]
}

/// Returns the part of a measured time that is charged to drafting, without interruptions.
fn charged(seconds: f64, usual: Option<f64>) -> f64 {
    usual.map_or(seconds, |usual| seconds.min(CHANGED * usual))
}

/// Rounds the length of a pause to a power of two, up to the limit after which missed tokens are
/// dropped.
fn about(n: u32) -> usize {
    (n.next_power_of_two() as usize).min(IDLE_LIMIT)
}

fn curve(curves: &mut Vec<LatencyCurve>, n_seq: usize) -> &mut LatencyCurve {
    if curves.len() <= n_seq {
        curves.resize(n_seq + 1, LatencyCurve::default());
    }
    &mut curves[n_seq]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::splitmix64;

    /// A simulated machine and drafter, times in seconds.
    struct World {
        pass: fn(usize) -> f64,
        draft: fn(usize) -> f64,
        /// Acceptance rate of the next token in round `i`.
        chance: fn(usize) -> f64,
        n_seq: usize,
        machine: Machine,
    }

    impl World {
        /// Returns the seconds per token, without the machine's slowness.
        fn run(
            &self,
            n_rounds: usize,
            length: &mut dyn FnMut(&mut DraftLengthController, usize) -> usize,
        ) -> f64 {
            let mut controller = DraftLengthController::default();
            let (mut seconds, mut n_tokens, mut n_draws) = (0.0, 0, 0);
            let (mut last, mut n_idle) = (0, 0);
            for i in 0..n_rounds {
                let n = length(&mut controller, self.n_seq);
                let slowness = (self.machine.slowness)(i);
                let Machine { cold, reading, .. } = self.machine;
                let cold = if n == 0 || n == last { 1.0 } else { cold };
                n_idle += 1;
                let mut drafters = 0.0;
                if n > 0 {
                    drafters = cold * (self.draft)(n) + reading * f64::from(n_idle.min(64) - 1);
                    n_idle = 0;
                    controller.drafted(SpecType::DraftMtp, self.n_seq, n, slowness * drafters);
                }
                let width = self.n_seq * (1 + n);
                let mut n_written = 0;
                for _ in 0..self.n_seq {
                    let is_accepted = |_: &usize| {
                        n_draws += 1;
                        let draw = splitmix64(7, n_draws) as f64 / u64::MAX as f64;
                        draw < (self.chance)(i)
                    };
                    let n_accepted = (0..n).take_while(is_accepted).count();
                    n_written += 1 + n_accepted;
                    if n > 0 {
                        controller.verified(SpecType::DraftMtp, n, n_accepted);
                    }
                }
                // Measured times always vary.
                let noise = 0.95 + 0.1 * splitmix64(9, i as u64) as f64 / u64::MAX as f64;
                let pass = (self.pass)(width) * cold * noise;
                last = n;
                let n_seq = self.n_seq;
                controller.record_round(Round {
                    n_seq,
                    width,
                    n_written,
                    pass: slowness * pass,
                    following: 0.0,
                });
                seconds += pass + drafters;
                n_tokens += n_written;
            }
            seconds / n_tokens as f64
        }

        fn with_automatic_length(&self, n_rounds: usize) -> f64 {
            self.run(n_rounds, &mut |controller, n_seq| {
                controller.length(SpecType::DraftMtp, n_seq, 16)
            })
        }

        fn fixed(&self, n_rounds: usize, n: usize) -> f64 {
            self.run(n_rounds, &mut |_, _| n)
        }
    }

    const PASSES: [fn(usize) -> f64; 3] = [|_| 1.0, |n| 0.9 + 0.1 * n as f64, |n| n as f64];
    const DRAFTS: [fn(usize) -> f64; 3] = [|_| 0.0, |n| 0.2 * n as f64, |n| 2.0 * n as f64];

    /// Disturbances that a machine adds to the costs.
    #[derive(Clone, Copy)]
    struct Machine {
        /// Slowdown in round `i`.
        slowness: fn(usize) -> f64,
        /// Slowdown of a draft and its pass if the previous draft had another length.
        cold: f64,
        /// Seconds for each round of a pause, whose tokens a draft has to evaluate.
        reading: f64,
    }

    const IDEAL: Machine = Machine {
        slowness: |_| 1.0,
        cold: 1.0,
        reading: 0.0,
    };
    /// Idle; slow for some rounds now and then; interrupted for single rounds.
    const REAL: [fn(usize) -> f64; 3] = [
        |_| 1.0,
        |i| if i % 200 < 40 { 2.5 } else { 1.0 },
        |i| if i % 37 == 5 { 10.0 } else { 1.0 },
    ];

    fn real() -> [Machine; 3] {
        REAL.map(|slowness| Machine {
            slowness,
            cold: 1.3,
            reading: 0.05,
        })
    }

    /// All combinations of pass costs, draft costs and acceptance rates on a machine.
    fn worlds(machine: Machine, chances: [fn(usize) -> f64; 3]) -> Vec<World> {
        let mut worlds = Vec::new();
        for n_seq in [1, 4] {
            for pass in PASSES {
                for draft in DRAFTS {
                    worlds.extend(chances.map(|chance| World {
                        pass,
                        draft,
                        chance,
                        n_seq,
                        machine,
                    }));
                }
            }
        }
        worlds
    }

    /// Checks that a run of `n_rounds` rounds takes at most `bound` times as long as plain
    /// decoding.
    fn check_hopeless(machine: Machine, bounds: &[(usize, f64)]) {
        let chances = [|_| 0.0, |_| 0.02, |i| if i < 200 { 1.0 } else { 0.0 }];
        for (i, world) in worlds(machine, chances).iter().enumerate() {
            for &(n_rounds, bound) in bounds {
                let (plain, automatic) = (
                    world.fixed(n_rounds, 0),
                    world.with_automatic_length(n_rounds),
                );
                assert!(
                    automatic <= bound * plain,
                    "world {i}, {n_rounds} rounds: {plain} -> {automatic}"
                );
            }
        }
    }

    #[test]
    fn a_hopeless_drafter_costs_next_to_nothing() {
        check_hopeless(IDEAL, &[(128, 1.03), (400, 1.03), (3000, 1.03)]);
        for machine in real() {
            // Learning the costs takes some passes.
            check_hopeless(machine, &[(128, 1.05), (400, 1.03), (3000, 1.03)]);
        }
    }

    /// Checks that a run takes at most `bound` times as long as with the best fixed length.
    fn check_good(machine: Machine, bound: f64) {
        let chances = [|_| 0.5, |_| 0.8, |_| 0.97];
        for (i, world) in worlds(machine, chances).iter().enumerate() {
            let all = (0..=16).map(|n| world.fixed(3000, n));
            let best = all.fold(f64::INFINITY, f64::min);
            let automatic = world.with_automatic_length(3000);
            assert!(
                automatic <= bound * best,
                "world {i}: best {best}, automatic {automatic}"
            );
        }
    }

    #[test]
    fn a_good_drafter_is_used_nearly_as_well_as_can_be() {
        check_good(IDEAL, 1.1);
        for (machine, bound) in real().into_iter().zip([1.2, 1.2, 1.3]) {
            check_good(machine, bound);
        }
    }

    #[test]
    fn a_drafter_that_becomes_good_is_found() {
        let world = World {
            pass: |n| 0.9 + 0.1 * n as f64,
            draft: |n| 0.1 * n as f64,
            chance: |i| if i < 500 { 0.0 } else { 0.95 },
            n_seq: 1,
            machine: real()[0],
        };
        let automatic = world.with_automatic_length(3000);
        assert!(automatic < 0.6 * world.fixed(3000, 0), "{automatic}");
    }

    #[test]
    fn the_length_follows_from_costs() {
        let always = || std::iter::successors(Some(1.0), |n| Some(n + 1.0));
        let never = || std::iter::repeat(0.0);
        // Additional tokens at no cost, at the cost of a pass each, and slightly above that.
        assert_eq!(best_length(8, |_| 1.0, |_| 0.0, always()), 8);
        assert_eq!(best_length(8, |k| 1.0 + k as f64, |_| 0.0, always()), 0);
        assert_eq!(best_length(8, |_| 1.0, |k| 1.1 * k as f64, always()), 0);
        assert_eq!(best_length(8, |_| 1.0, |_| 0.0, never()), 0);
        // The cost steps up after four tokens.
        let steps = |k: usize| if k <= 3 { 1.0 } else { 3.0 };
        assert_eq!(best_length(7, steps, |_| 0.0, always()), 3);
        assert_eq!(best_length(0, steps, |_| 0.0, always()), 0);
    }
}
