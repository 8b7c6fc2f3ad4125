//! Drafts that go wrong at a place of choice.

use kernels::cpu::Cpu;
use runner::speculate::{Completion, Driver, Policy, Request, SpecType};

use runner::speculate::NgramSimple;

use crate::mock::Oracle;
use crate::setup::{
    Drafters, Family, N_PREDICT, assert_begins, assert_same, decode_for, endless, request, requests,
};

/// No text ends by itself, so every place of a draft is met.
fn decode(driver: &mut Driver<Cpu>, requests: &[Request]) -> Vec<Completion> {
    endless(0.0, |config| driver.decode(requests, config).unwrap().0)
}

/// What follows prompts, and whole texts with it.
fn plain(family: &Family, requests: &[Request]) -> (Vec<Completion>, Vec<Vec<u32>>) {
    let mut driver = family.driver(Vec::new(), Policy::First, 1, 0);
    let plain = decode(&mut driver, requests);
    let pairs = requests.iter().zip(&plain);
    let texts = pairs.map(|(request, done)| [&request.tokens[..], &done.tokens].concat());
    let texts = texts.collect();
    (plain, texts)
}

/// Drafts of every length up to 16, and of 64, each with a wrong token at every place, for one, two
/// and five sequences, and what is written behind them. Every other time fewer states are kept than a
/// draft has tokens.
#[test]
fn a_draft_may_go_wrong_anywhere() {
    // Prompts that differ in length, and room for one draft each and what follows it.
    let requests = |n_max: usize| (0..5).map(|i| prompt(i, n_max + 4)).collect::<Vec<_>>();
    for family in Family::all() {
        let (plain, texts) = plain(&family, &requests(64));
        for n_max in (1..=16).chain([64]) {
            let requests = requests(n_max);
            for n_seq in [1, 2, 5] {
                let n_rollback = if n_max % 2 == 0 { n_max / 2 } else { n_max };
                // The first draft of each sequence goes wrong at the next place.
                for first in (0..=n_max).step_by(n_seq) {
                    let oracle = Oracle {
                        texts: texts.clone(),
                        n_max,
                        wrong: (0..texts.len()).map(|i| first + i).collect(),
                        step: 7,
                    };
                    let drafters: Drafters = vec![Box::new(oracle)];
                    let mut driver = family.driver(drafters, Policy::First, n_seq, n_rollback);
                    let drafted = endless(0.0, |config| {
                        decode_for(2, &mut driver, &requests[..n_seq], config)
                    });
                    let name = family.name();
                    let name = format!("{name}: {n_seq} x {n_max}, wrong at {first}");
                    assert_begins(&name, &plain, &drafted);
                    for (i, drafted) in drafted.iter().enumerate() {
                        let n_accepted = (first + i) % (n_max + 1);
                        let reached = drafted.tally.accepted_lengths[n_accepted] > 0;
                        assert!(reached, "{name}: {n_accepted} of prompt {i}");
                    }
                }
            }
        }
    }
}

fn prompt(i: u32, n_predict: usize) -> Request {
    let tokens = (0..5 + 3 * i).map(|k| (k * (7 + 4 * i) + i) % 251);
    request(tokens.collect(), n_predict)
}

/// The text is the same whichever draft is checked, and the better drafter is the one that is asked
/// for more of them.
#[test]
fn the_best_draft_is_checked() {
    let family = Family::of(fixtures::all().next().unwrap());
    let (plain, texts) = plain(&family, &requests(N_PREDICT));
    for n_seq in [1, 3] {
        let size = |n: usize| n.try_into().unwrap();
        // Wrong at one place of nine, another one each time; the other just repeats the text.
        let good = Oracle {
            texts: texts.clone(),
            n_max: 8,
            wrong: vec![3; texts.len()],
            step: 1,
        };
        let bad = NgramSimple {
            n: size(1),
            m: size(8),
        };
        let drafters: Drafters = vec![Box::new(bad), Box::new(good)];
        let mut driver = family.driver(drafters, Policy::Best, n_seq, 8);
        let drafted = decode(&mut driver, &requests(N_PREDICT));
        assert_same("best", &plain, &drafted);
        let mut accepted = [0, 0];
        for completion in &drafted {
            for tally in &completion.tally.speculators {
                accepted[usize::from(tally.kind == SpecType::DraftSimple)] += tally.n_accepted;
            }
        }
        assert!(accepted[1] > accepted[0], "{accepted:?}");
    }
}
