//! Drafts that are wrong at a chosen position.

use kernels::cpu::Cpu;
use runner::speculate::{Completion, Driver, NgramSimple, Policy, Request, SpecType};

use crate::mock::Oracle;
use crate::setup::{
    Drafters, Family, N_PREDICT, assert_begins, assert_same, decode_for, endless, request, requests,
};

/// Decodes without end tokens, so that every position of a draft is reached.
fn decode(driver: &mut Driver<Cpu>, requests: &[Request]) -> Vec<Completion> {
    endless(0.0, |config| driver.decode(requests, config).unwrap().0)
}

/// Returns the completions of prompts, and the whole texts.
fn plain(family: &Family, requests: &[Request]) -> (Vec<Completion>, Vec<Vec<u32>>) {
    let mut driver = family.driver(Vec::new(), Policy::First, 1, 0);
    let plain = decode(&mut driver, requests);
    let pairs = requests.iter().zip(&plain);
    let texts = pairs.map(|(request, done)| [&request.tokens[..], &done.tokens].concat());
    let texts = texts.collect();
    (plain, texts)
}

/// Runs drafts of every length up to 16, and of 64, each with a wrong token at every position, for
/// one, two and five sequences. Every other length keeps fewer states than the draft has tokens.
#[test]
fn a_draft_may_go_wrong_anywhere() {
    // Prompts of different lengths, with room for one draft each and the tokens after it.
    let requests = |n_max: usize| (0..5).map(|i| prompt(i, n_max + 4)).collect::<Vec<_>>();
    for family in Family::all() {
        let (plain, texts) = plain(&family, &requests(64));
        for n_max in (1..=16).chain([64]) {
            let requests = requests(n_max);
            for n_seq in [1, 2, 5] {
                let n_rollback = if n_max % 2 == 0 { n_max / 2 } else { n_max };
                // The first draft of each sequence is wrong at the next position.
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

/// The text is the same whichever draft is verified, and the better drafter is chosen more often.
#[test]
fn the_best_draft_is_checked() {
    let family = Family::of(fixtures::all().next().unwrap());
    let (plain, texts) = plain(&family, &requests(N_PREDICT));
    for n_seq in [1, 3] {
        let size = |n: usize| n.try_into().unwrap();
        // Wrong at one of nine positions, another one each time; the other drafter just repeats the
        // text.
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
