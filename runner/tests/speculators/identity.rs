//! Texts with speculators equal those without.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runner::speculate::latency_model::Clock;
use runner::speculate::{Completion, Policy, SpecType};

use crate::recorder::Recorder;
use crate::setup::{
    Drafters, Family, Kind, assert_begins, assert_same, decode, decode_for, ending, requests,
};

const TEMPERATURES: [f32; 2] = [0.0, 0.8];
const LENGTHS: [usize; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 64];
const N_SEQS: [usize; 3] = [1, 2, 5];

/// Returns each speculator that the model can use, and some chains.
fn chains(family: &Family) -> Vec<Vec<Kind>> {
    let single = family.kinds().into_iter().map(|kind| vec![kind]);
    let mut chains: Vec<Vec<Kind>> = single.collect();
    chains.push(vec![Kind::NgramSimple, Kind::Simple]);
    chains.push(vec![Kind::NgramMod, Kind::Eagle3(0), Kind::NgramCache]);
    chains.push(vec![Kind::Dspark, Kind::Eagle3(1)]);
    chains.push(vec![Kind::Dflash2, Kind::Dflash]);
    chains
}

#[test]
fn every_speculator_is_tested() {
    let untested = SpecType::ALL.into_iter().filter(|&spec_type| {
        let tests = |family: Family| family.kinds().iter().any(|k| k.spec_type() == spec_type);
        !Family::all().any(tests)
    });
    assert_eq!(untested.collect::<Vec<_>>(), []);
}

fn drafters(family: &Family, chain: &[Kind], n_seq: usize, n_max: usize) -> Drafters {
    let speculator = |&kind| family.speculator(kind, n_seq, n_max);
    chain.iter().map(speculator).collect()
}

/// Runs every speculator with every number of sequences on every architecture. Draft lengths and
/// temperatures alternate, so that each length is tested with each speculator.
#[test]
fn no_speculator_changes_a_text() {
    let mut turn = 0;
    for family in Family::all() {
        let mut alone = family.driver(Vec::new(), Policy::First, 1, 0);
        // Longer than a draft, so that a full draft fits.
        let texts = |n_max: usize| requests(n_max + 4);
        let plain = TEMPERATURES
            .map(|temperature| decode(&mut alone, &texts(LENGTHS[LENGTHS.len() - 1]), temperature));
        for (i, chain) in chains(&family).iter().enumerate() {
            for n_seq in N_SEQS {
                let n_max = LENGTHS[(turn + 6 * i) % LENGTHS.len()];
                let way = turn % 2;
                turn += 1;
                let (plain, temperature) = (&plain[way], TEMPERATURES[way]);
                // All states of a draft are kept for some lengths, and tokens are rerun for others.
                let n_rollback = n_max.min(5);
                let drafters = drafters(&family, chain, n_seq, n_max);
                let mut driver = family.driver(drafters, Policy::First, n_seq, n_rollback);
                // Long drafts of random weights are rejected and take long.
                let n_rounds = if n_max > 16 { 3 } else { 8 };
                let drafted = ending(temperature, |config| {
                    decode_for(n_rounds, &mut driver, &texts(n_max), config)
                });
                let name = family.name();
                let name = format!("{name} {chain:?} {n_seq} x {n_max} at {temperature}");
                assert_begins(&name, plain, &drafted);
            }
        }
        for n_seq in [2, 5] {
            let together = family.decode(Vec::new(), n_seq, 0, 0.0);
            assert_begins("no drafts", &plain[0], &together);
        }
    }
}

fn accepted(completions: &[Completion]) -> Vec<Vec<u64>> {
    let lengths = completions.iter().map(|c| c.tally.accepted_lengths.clone());
    lengths.collect()
}

/// Drafted and accepted tokens do not depend on the other sequences: each speculator's caches are
/// in sync with their sequences.
#[test]
fn drafts_do_not_depend_on_other_sequences() {
    for family in Family::all() {
        for kind in family.kinds() {
            // The table is shared: one sequence can draft from the text of another.
            if kind == Kind::NgramMod {
                continue;
            }
            let counts = |n_seq| {
                let drafters = drafters(&family, &[kind], n_seq, 3);
                accepted(&family.decode(drafters, n_seq, 3, 0.0))
            };
            let alone = counts(1);
            for n_seq in [2, 5] {
                let name = family.name();
                assert_eq!(alone, counts(n_seq), "{name} {kind:?} {n_seq} sequences");
            }
        }
    }
}

/// A draft reads the hidden states of its own layers, whatever layers other drafts of the run read.
#[test]
fn drafts_do_not_depend_on_the_layers_of_other_drafts() {
    let reading = [
        Kind::Eagle3(0),
        Kind::Eagle3(1),
        Kind::Dflash,
        Kind::Dspark,
        Kind::Dflash2,
    ];
    for plan in fixtures::all() {
        for kind in reading {
            let mut family = Family::of(plan.clone());
            let drafts = |family: &Family| {
                let recorder = Recorder {
                    speculator: family.speculator(kind, 2, 3),
                    drafts: Rc::default(),
                };
                let drafts = Rc::clone(&recorder.drafts);
                family.decode(vec![Box::new(recorder)], 2, 3, 0.0);
                drafts.take()
            };
            let with_others = drafts(&family);
            family.tap_only_for(kind);
            let name = family.name();
            assert_eq!(with_others, drafts(&family), "{name} {kind:?}");
            let mut different = with_others.clone();
            different.sort();
            different.dedup();
            assert!(different.len() > 1, "{name} {kind:?}");
        }
    }
}

/// With an identity map, a translated draft equals the direct draft: the model's caches follow the
/// text in the same way.
#[test]
fn a_translation_of_nothing_changes_nothing() {
    for family in Family::all() {
        for n_seq in [1, 2] {
            // A model that drafts for itself is always right, so the counts are not zero.
            let direct = drafters(&family, &[Kind::Itself], n_seq, 3);
            let direct = family.decode(direct, n_seq, 3, 0.0);
            let mapped = vec![family.itself_mapped(n_seq, 3)];
            let mapped = family.decode(mapped, n_seq, 3, 0.0);
            assert_same("translated", &direct, &mapped);
            assert_eq!(accepted(&direct), accepted(&mapped), "{}", family.name());
            assert!(direct.iter().all(|c| c.tally.acceptance() > Some(0.9)));
        }
    }
}

/// A clock unrelated to real time: it only advances when it is read.
struct Whimsical {
    now: Cell<Duration>,
    noise: Cell<u64>,
    steps: Steps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// By a random amount.
    Random,
    /// By the same amount each time: every operation costs the same, so correct drafts pay.
    Even,
}

impl Clock for Whimsical {
    fn now(&self) -> Duration {
        let noise = self
            .noise
            .get()
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.noise.set(noise);
        let step = match self.steps {
            Steps::Random => Duration::from_secs(noise >> 44),
            Steps::Even => Duration::from_secs(1),
        };
        self.now.set(self.now.get() + step);
        self.now.get()
    }
}

/// Time affects the draft length, never the text.
#[test]
fn no_clock_changes_a_text() {
    const LONGEST: usize = 8;
    // Long enough to measure the cost of drafts and to use it.
    let texts = requests(30);
    for steps in [Steps::Random, Steps::Even] {
        // Number of drafts by length; those of the target itself are always right.
        let mut n_drafts = [[0; LONGEST + 1]; 2];
        for (i, family) in (0..).zip(Family::all()) {
            let way = usize::from(steps == Steps::Even);
            let temperature = TEMPERATURES[way];
            let mut alone = family.driver(Vec::new(), Policy::First, 1, 0);
            let plain = decode(&mut alone, &texts, temperature);
            for (j, kind) in (0..).zip(family.kinds()) {
                let n_seq = N_SEQS[(way + j) % N_SEQS.len()];
                let drafters = drafters(&family, &[kind], n_seq, LONGEST);
                let driver = family.driver(drafters, Policy::First, n_seq, LONGEST);
                let mut driver = driver.with_automatic_length(Rc::new(Whimsical {
                    now: Cell::default(),
                    noise: Cell::new(100 * i + j as u64),
                    steps,
                }));
                let drafted = decode(&mut driver, &texts, temperature);
                assert_same(&format!("{} {kind:?}", family.name()), &plain, &drafted);
                let n_drafts = &mut n_drafts[usize::from(kind == Kind::Itself)];
                for completion in &drafted {
                    let by_position = &completion.tally.by_position;
                    let reached = by_position.iter().map(|counts| counts.n_drafted);
                    let further = reached.clone().skip(1).chain([0]);
                    for (n, (reached, further)) in (1..).zip(reached.zip(further)) {
                        n_drafts[n] += reached - further;
                    }
                }
            }
        }
        let n_lengths = |n_drafts: &[u64]| n_drafts.iter().filter(|&&n| n > 0).count();
        let [others, itself] = n_drafts;
        assert!(n_lengths(&others) > 2, "{others:?}");
        assert!(itself.iter().sum::<u64>() > 50, "{itself:?}");
        assert!(n_lengths(&itself) > 2, "{itself:?}");
        if steps == Steps::Even {
            assert!(itself[LONGEST] > 10, "{itself:?}");
        }
    }
}
