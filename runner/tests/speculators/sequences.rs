//! Sequences join, leave and are rolled back in any order: each has the text it has alone.

use std::collections::HashMap;

use kernels::cpu::Cpu;
use proptest::prelude::*;
use runner::speculate::{Driver, Policy};

use crate::setup::{Drafters, Family, Kind, N_CTX, decode, endless, request};

const N_SEQ: usize = 3;
/// Maximum number of tokens that a sequence generates.
const N_PREDICT: usize = 24;

/// An event between two rounds.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// A sequence starts on a prompt, whatever it did before.
    Join { seq: usize, prompt: usize },
    /// The same, but the prompt is evaluated in pieces, with a round of the other sequences after each.
    Prefill {
        seq: usize,
        prompt: usize,
        piece: usize,
    },
    /// A sequence ends before its prompt is evaluated.
    Cancel { seq: usize, prompt: usize },
    /// The sequence is truncated to a part of its text, in 64ths.
    Truncate { seq: usize, kept: usize },
    /// The sequence ends.
    Leave { seq: usize },
    /// All sequences continue.
    Rounds { n: usize },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let seq = || 0..N_SEQ;
    let a_move = prop_oneof![
        2 => (seq(), 0..PROMPTS).prop_map(|(seq, prompt)| Move::Join { seq, prompt }),
        2 => (seq(), 0..PROMPTS, 1..40usize)
            .prop_map(|(seq, prompt, piece)| Move::Prefill { seq, prompt, piece }),
        1 => (seq(), 0..PROMPTS).prop_map(|(seq, prompt)| Move::Cancel { seq, prompt }),
        2 => (seq(), 1..64usize).prop_map(|(seq, kept)| Move::Truncate { seq, kept }),
        1 => seq().prop_map(|seq| Move::Leave { seq }),
        4 => (1..5usize).prop_map(|n| Move::Rounds { n }),
    ];
    prop::collection::vec(a_move, 4..24)
}

const PROMPTS: usize = 5;

/// Some prompts share a prefix, and one is a prefix of another.
fn prompt(i: usize) -> Vec<u32> {
    let tail = |seed: u32, n: u32| (0..n).map(move |k| (k % 7 * seed + 3) % 251);
    let head: Vec<u32> = (0..70).map(|k| k * 11 % 37).collect();
    match i {
        0 => head,
        1 => head.into_iter().chain(tail(5, 9)).collect(),
        2 => head[..30].iter().copied().chain(tail(9, 20)).collect(),
        3 => tail(13, 6).collect(),
        _ => head[..50].to_vec(),
    }
}

/// Texts of a driver without speculators, one sequence at a time, from scratch.
struct Plain {
    driver: Driver<Cpu>,
    known: HashMap<(Vec<u32>, usize), Vec<u32>>,
}

impl Plain {
    /// Returns the continuation of a text, with the random stream `number`.
    fn after(&mut self, text: &[u32], number: usize, temperature: f32) -> Vec<u32> {
        let key = (text.to_vec(), number);
        let driver = &mut self.driver;
        let write = || {
            let request = request(text.to_vec(), N_CTX);
            endless(temperature, |config| {
                // Replaces the previous text of the sequence completely.
                driver
                    .join(0, 9, &self::request(vec![250], 1), config)
                    .unwrap();
                driver.join(0, number, &request, config).unwrap();
                while driver.left(0) > 0 {
                    driver.round(config).unwrap();
                }
                driver.leave(0).unwrap().tokens
            })
        };
        self.known.entry(key).or_insert_with(write).clone()
    }
}

fn check(
    family: &Family,
    kind: Kind,
    moves: &[Move],
    temperature: f32,
    n_rollback: usize,
    plain: &mut Plain,
) {
    let speculator = family.speculator(kind, N_SEQ, 6);
    let drafters: Drafters = vec![speculator];
    let mut driver = family.driver(drafters, Policy::First, N_SEQ, n_rollback);
    let mut prompts: [Option<(usize, Vec<u32>)>; N_SEQ] = Default::default();
    let mut finish = |driver: &mut Driver<Cpu>, seq: usize, prompt: Option<(usize, Vec<u32>)>| {
        let Some((number, prompt)) = prompt else {
            assert!(driver.leave(seq).is_none());
            return Vec::new();
        };
        let written = driver.leave(seq).unwrap().tokens;
        let expected = plain.after(&prompt, number, temperature);
        let n = written.len();
        let name = family.name();
        assert_eq!(written, expected[..n], "{name} {kind:?}: {moves:?}");
        written
    };
    endless(temperature, |config| {
        for &step in moves {
            match step {
                Move::Join { seq, prompt: i } => {
                    finish(&mut driver, seq, prompts[seq].take());
                    let request = request(prompt(i), N_PREDICT);
                    driver.join(seq, i, &request, config).unwrap();
                    prompts[seq] = Some((i, request.tokens));
                }
                Move::Prefill {
                    seq,
                    prompt: i,
                    piece,
                } => {
                    finish(&mut driver, seq, prompts[seq].take());
                    let request = request(prompt(i), N_PREDICT);
                    driver.start(seq, i, &request, config.text).unwrap();
                    while driver.prefill(seq, piece, config).unwrap() > 0 {
                        driver.round(config).unwrap();
                    }
                    prompts[seq] = Some((i, request.tokens));
                }
                Move::Cancel { seq, prompt: i } => {
                    finish(&mut driver, seq, prompts[seq].take());
                    let request = request(prompt(i), N_PREDICT);
                    driver.start(seq, i, &request, config.text).unwrap();
                    driver.prefill(seq, 3, config).unwrap();
                    driver.leave(seq).unwrap();
                }
                Move::Truncate { seq, kept } => {
                    let Some((_, prompt)) = &mut prompts[seq] else {
                        continue;
                    };
                    let written = driver.written(seq).len();
                    let len = ((prompt.len() + written) * kept / 64).max(1);
                    driver.truncate(seq, len, N_PREDICT, config).unwrap();
                    prompt.truncate(len);
                }
                Move::Leave { seq } => {
                    finish(&mut driver, seq, prompts[seq].take());
                }
                Move::Rounds { n } => {
                    for _ in 0..n {
                        driver.round(config).unwrap();
                    }
                }
            }
        }
        for (seq, prompt) in prompts.into_iter().enumerate() {
            finish(&mut driver, seq, prompt);
        }
    });
}

/// The states of the truncated sequence are gone: it has to evaluate its text again, but another shares it before.
#[test]
fn a_prompt_shares_a_text_that_was_truncated() {
    let moves = [
        Move::Join { seq: 2, prompt: 1 },
        Move::Truncate { seq: 2, kept: 57 },
        Move::Join { seq: 0, prompt: 0 },
        Move::Rounds { n: 1 },
    ];
    for plan in fixtures::all() {
        let family = Family::of(plan);
        let mut plain = Plain {
            driver: family.driver(Vec::new(), Policy::First, 1, 0),
            known: HashMap::new(),
        };
        for n_rollback in [0, 3] {
            check(
                &family,
                Kind::NgramSimple,
                &moves,
                0.0,
                n_rollback,
                &mut plain,
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn each_sequence_writes_what_it_writes_alone(
        moves in moves(),
        which in any::<prop::sample::Index>(),
        n_rollback in 0..8usize,
        is_drawn in any::<bool>(),
    ) {
        let plans: Vec<_> = fixtures::all().collect();
        let family = Family::of(which.get(&plans).clone());
        let temperature = if is_drawn { 0.8 } else { 0.0 };
        let mut plain = Plain {
            driver: family.driver(Vec::new(), Policy::First, 1, 0),
            known: HashMap::new(),
        };
        for kind in family.kinds() {
            check(&family, kind, &moves, temperature, n_rollback, &mut plain);
        }
    }
}

/// Cached prefix of a sequence at its start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beginning {
    Nothing,
    /// A part of its own previous text.
    Cut,
    /// A part of another sequence's text.
    Shared,
}

/// After a rollback, or a start with a prefix of another sequence, drafts are those of a driver
/// without that history: each speculator has the same state.
#[test]
fn drafts_after_a_cut_are_those_without() {
    for family in Family::all() {
        // These keep statistics of a text, which only lose accuracy after a rollback.
        let by_statistics = [Kind::NgramMod, Kind::NgramMapK, Kind::NgramMapK4v];
        let kinds = family.kinds().into_iter();
        for kind in kinds.filter(|kind| !by_statistics.contains(kind)) {
            let counts = |beginning: Beginning| {
                let speculator = family.speculator(kind, 2, 4);
                let mut driver = family.driver(vec![speculator], Policy::First, 2, 4);
                endless(0.0, |config| {
                    if beginning != Beginning::Nothing {
                        // A prompt that shares the first 70 tokens, with some generated tokens.
                        let seq = usize::from(beginning == Beginning::Shared);
                        let other = request(prompt(1), 20);
                        driver.join(seq, 0, &other, config).unwrap();
                        for _ in 0..6 {
                            driver.round(config).unwrap();
                        }
                        driver.leave(seq).unwrap();
                    }
                    let request = request(prompt(0), 30);
                    driver.join(0, 0, &request, config).unwrap();
                    while driver.left(0) > 0 {
                        driver.round(config).unwrap();
                    }
                    let tally = driver.leave(0).unwrap().tally;
                    assert_eq!(tally.n_reused > 0, beginning != Beginning::Nothing);
                    tally.accepted_lengths
                })
            };
            let expected = counts(Beginning::Nothing);
            for beginning in [Beginning::Cut, Beginning::Shared] {
                assert_eq!(counts(beginning), expected, "{} {kind:?}", family.name());
            }
        }
    }
}

/// A text without drafts leaves nothing in a draft's caches that changes the drafts of the next text
/// of its sequence.
#[test]
fn a_text_without_drafts_does_not_change_the_next_drafts() {
    for family in Family::all() {
        for kind in family.kinds() {
            // The table outlives its texts by design.
            if kind == Kind::NgramMod {
                continue;
            }
            let counts = |has_history: bool| {
                let speculator = family.speculator(kind, 1, 4);
                let mut driver = family.driver(vec![speculator], Policy::First, 1, 4);
                endless(0.0, |config| {
                    if has_history {
                        config.text.n_draft_max = Some(0);
                        let undrafted = request(prompt(3), 80);
                        driver.decode(&[undrafted], config).unwrap();
                        config.text.n_draft_max = None;
                    }
                    let next = request(prompt(1), 20);
                    let completion = driver.decode(&[next], config).unwrap().0.remove(0);
                    completion.tally.accepted_lengths
                })
            };
            assert_eq!(counts(false), counts(true), "{} {kind:?}", family.name());
        }
    }
}

/// A prefix of a prompt that is in the caches, of its own sequence or of another, is not evaluated
/// again.
#[test]
fn what_prompts_have_in_common_is_run_once() {
    const N_WRITTEN: usize = 8;
    // The last token of a prompt is always evaluated; another sequence has a longer prefix of the
    // third prompt.
    const ALONE: [u64; 3] = [0, 69, 70];
    const TOGETHER: [u64; 3] = [0, 69, 78];
    for family in Family::all() {
        let prompts: Vec<_> = [1, 0, 1].map(|i| request(prompt(i), N_WRITTEN)).into();
        let alone = |request| {
            let mut driver = family.driver(Vec::new(), Policy::First, 1, 0);
            decode(&mut driver, std::slice::from_ref(request), 0.0).remove(0)
        };
        let plain: Vec<_> = prompts.iter().map(alone).collect();
        for (n_seq, n_shared) in [(1, ALONE), (3, TOGETHER)] {
            let mut driver = family.driver(Vec::new(), Policy::First, n_seq, 2);
            let reused = decode(&mut driver, &prompts, 0.0);
            for (i, (plain, reused)) in plain.iter().zip(&reused).enumerate() {
                let name = format!("{}, {n_seq} sequences, prompt {i}", family.name());
                assert_eq!(plain.tokens, reused.tokens, "{name}");
                assert_eq!(plain.hashes, reused.hashes, "{name}");
                assert_eq!(plain.tally.n_reused, 0);
                assert_eq!(reused.tally.n_reused, n_shared[i], "{name}");
            }
            let n_prompt: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
            let n_other = (n_prompt + prompts.len() * (N_WRITTEN - 1)) as u64;
            let n_extra = driver.target().n_run() - (n_other - n_shared.iter().sum::<u64>());
            // After generated tokens, the nearest kept state may be one token earlier. Rows of positions that are
            // compressed are kept before multiples of 256 only, and these prompts are shorter.
            let most = match family.hparams().arch.blocks.compressed {
                true => n_shared.iter().sum(),
                false => u64::from(n_seq == 1 && driver.target().has_states()),
            };
            assert!(n_extra <= most, "{}, {n_seq} sequences", family.name());
        }
    }
}
