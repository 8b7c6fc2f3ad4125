//! Runs every target on its seeds and on changed seeds, within a limit of memory. The input that a target runs on is in the
//! folder `tmp/changed_seeds` of the build.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use fuzz::{TARGETS, Target};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

/// Address space of this process: more than all targets need. Counts of items can claim any number of bytes; the
/// process exits when there is no room for them.
#[cfg(target_os = "linux")]
const MAX_BYTES: u64 = 4 << 30;

/// Changed seeds of each target.
const CASES: u32 = 500;

/// Threads that run targets: as many on each machine, because threads need address space.
const N_THREADS: usize = 4;

/// Numbers that are lengths, counts or signs where a format has them.
const NUMBERS: [u64; 8] = [
    0,
    1,
    0x7f,
    0xff,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    u64::MAX,
];

/// A change of an input.
#[derive(Clone, Debug)]
enum Change {
    /// Another byte.
    Byte(Index, u8),
    /// A number, little-endian, in as many bytes.
    Number(Index, usize, u64),
    /// A copy of some bytes at another place.
    Copy(Index, Index, usize),
    Remove(Index, usize),
    Truncate(Index),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        // The end is a place, too.
        let from = |place: &Index, n: usize| {
            let start = place.index(len + 1);
            start..(start + n).min(len)
        };
        match self {
            Change::Byte(place, value) => bytes[from(place, 1)].fill(*value),
            Change::Number(place, n, value) => {
                let range = from(place, *n);
                let n = range.len();
                bytes[range].copy_from_slice(&value.to_le_bytes()[..n]);
            }
            Change::Copy(source, place, n) => {
                let copied = bytes[from(source, *n)].to_vec();
                bytes.splice(from(place, 0), copied);
            }
            Change::Remove(place, n) => drop(bytes.drain(from(place, *n))),
            Change::Truncate(place) => bytes.truncate(place.index(len + 1)),
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let place = any::<Index>;
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(place, value)| Change::Byte(place, value)),
        4 => (place(), prop::sample::select(vec![1, 2, 4, 8]), prop::sample::select(NUMBERS.to_vec()))
            .prop_map(|(place, n, value)| Change::Number(place, n, value)),
        2 => (place(), place(), 1..64usize).prop_map(|(source, place, n)| Change::Copy(source, place, n)),
        2 => (place(), 1..64usize).prop_map(|(place, n)| Change::Remove(place, n)),
        1 => place().prop_map(Change::Truncate),
    ]
}

/// The inputs in a target's folder.
fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target.name);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}: no seeds", target.name);
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn check(target: &Target, folder: &Path) {
    let run = (target.prepare)();
    let input = folder.join(target.name);
    let run = |bytes: &[u8]| {
        fs::write(&input, bytes).unwrap();
        run(bytes)
    };
    let seeds = seeds(target);
    let accepted = seeds
        .iter()
        .map(|seed| run(seed))
        .filter(|&accepted| accepted);
    assert!(accepted.count() > 0, "{}: no seed is accepted", target.name);
    let config = ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(CASES, |n| n.parse().unwrap()),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let strategy = (any::<Index>(), vec(change(), 1..8));
    let ran = TestRunner::new(config).run(&strategy, |(seed, changes)| {
        let mut bytes = seed.get(&seeds).clone();
        for change in &changes {
            change.apply(&mut bytes);
        }
        run(&bytes);
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{}: {error}", target.name);
    }
}

#[test]
fn changed_seeds_are_read_or_rejected() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::As);
        limit.current = Some(MAX_BYTES);
        setrlimit(Resource::As, limit).unwrap();
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("changed_seeds");
    fs::create_dir_all(&folder).unwrap();
    let targets = Mutex::new(TARGETS.iter());
    thread::scope(|scope| {
        for _ in 0..N_THREADS {
            scope.spawn(|| {
                loop {
                    let next = targets.lock().unwrap().next();
                    let Some(target) = next else { break };
                    check(target, &folder);
                }
            });
        }
    });
}
