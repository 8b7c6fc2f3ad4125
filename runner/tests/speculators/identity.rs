//! Texts with speculators are those without.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runner::speculate::cost::Clock;
use runner::speculate::{Completion, Policy};

use crate::setup::{Drafters, Family, Kind, assert_same, decode, requests};

const TEMPERATURES: [f32; 2] = [0.0, 0.8];
const LENGTHS: [usize; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 64];
const N_SEQS: [usize; 3] = [1, 2, 5];

/// Each speculator that the model can use, and some in a row.
fn chains(family: &Family) -> Vec<Vec<Kind>> {
    let single = family.kinds().into_iter().map(|kind| vec![kind]);
    let mut chains: Vec<Vec<Kind>> = single.collect();
    chains.push(vec![Kind::NgramSimple, Kind::Simple]);
    chains.push(vec![Kind::NgramMod, Kind::Eagle3(0), Kind::NgramCache]);
    chains
}

fn drafters(family: &Family, chain: &[Kind], n_seq: usize, n_max: usize) -> Drafters {
    let speculator = |&kind| family.speculator(kind, n_seq, n_max);
    chain.iter().map(speculator).collect()
}

/// Every speculator with every number of sequences, on every architecture; the lengths of drafts, and
/// whether tokens are drawn, take turns, so that each length is met with each speculator.
#[test]
fn no_speculator_changes_a_text() {
    let mut turn = 0;
    for family in Family::all() {
        let plain = TEMPERATURES.map(|temperature| family.decode(Vec::new(), 1, 0, temperature));
        for (i, chain) in chains(&family).iter().enumerate() {
            for n_seq in N_SEQS {
                let n_max = LENGTHS[(turn + 6 * i) % LENGTHS.len()];
                let way = turn % 2;
                turn += 1;
                let (plain, temperature) = (&plain[way], TEMPERATURES[way]);
                // States are kept for some lengths, and run again for others.
                let n_rollback = n_max.min(5);
                let drafters = drafters(&family, chain, n_seq, n_max);
                let drafted = family.decode(drafters, n_seq, n_rollback, temperature);
                let name = family.name();
                let name = format!("{name} {chain:?} {n_seq} x {n_max} at {temperature}");
                assert_same(&name, plain, &drafted);
            }
        }
        for n_seq in [2, 5] {
            let together = family.decode(Vec::new(), n_seq, 0, 0.0);
            assert_same("no drafts", &plain[0], &together);
        }
    }
}

fn accepted(completions: &[Completion]) -> Vec<Vec<u64>> {
    let lengths = completions.iter().map(|c| c.tally.accepted_lengths.clone());
    lengths.collect()
}

/// What is drafted, and how much of it accepted, does not depend on the other sequences: each
/// speculator's own caches are in step with its sequence.
#[test]
fn drafts_do_not_depend_on_other_sequences() {
    for family in Family::all() {
        for kind in family.kinds() {
            // What one text says, another may take up there.
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

/// With a map that changes nothing, a translated draft is the draft: the model's caches follow the
/// text in the same way.
#[test]
fn a_translation_of_nothing_changes_nothing() {
    for family in Family::all() {
        for n_seq in [1, 2] {
            // A model that drafts for itself is always right, so there is something to count.
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

/// Time that runs as it likes.
struct Whimsical(Cell<u64>);

impl Clock for Whimsical {
    fn now(&self) -> Duration {
        let next = self
            .0
            .get()
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.0.set(next);
        // Later than before, by a little or a lot.
        let calls = Duration::from_secs(next >> 44);
        TIME.with(|time| {
            time.set(time.get() + calls);
            time.get()
        })
    }
}

thread_local! {
    static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Time chooses how long drafts are, never what a text says.
#[test]
fn no_clock_changes_a_text() {
    let mut lengths = Vec::new();
    for (i, family) in (0..).zip(Family::all()) {
        for (way, temperature) in TEMPERATURES.into_iter().enumerate() {
            let plain = family.decode(Vec::new(), 1, 0, temperature);
            for (j, kind) in (0..).zip(family.kinds()) {
                let n_seq = N_SEQS[(way + j) % N_SEQS.len()];
                let drafters = drafters(&family, &[kind], n_seq, 8);
                let driver = family.driver(drafters, Policy::First, n_seq, 8);
                let clock = Whimsical(Cell::new(100 * i + j as u64));
                let mut driver = driver.paced(Rc::new(clock));
                let drafted = decode(&mut driver, &requests(), temperature);
                assert_same(&format!("{} {kind:?}", family.name()), &plain, &drafted);
                let drafted = drafted.iter().map(|c| c.tally.places.len());
                lengths.extend(drafted);
            }
        }
    }
    lengths.sort_unstable();
    lengths.dedup();
    // Drafts hardly ever pay by such a clock, but they are tried.
    assert!(lengths.len() > 1, "lengths of drafts: {lengths:?}");
}
