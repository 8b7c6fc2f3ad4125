//! Drafts that go wrong at a place of choice.

use runner::speculate::{Completion, Policy, Request, SpecType};

use runner::speculate::NgramSimple;

use crate::mock::Oracle;
use crate::setup::{Drafters, Family, assert_same, decode, request, requests};

/// What follows prompts, and whole texts with it.
fn plain(family: &Family, requests: &[Request]) -> (Vec<Completion>, Vec<Vec<u32>>) {
    let mut driver = family.driver(Vec::new(), Policy::First, 1, 0);
    let plain = decode(&mut driver, requests, 0.0);
    let pairs = requests.iter().zip(&plain);
    let texts = pairs.map(|(request, done)| [&request.tokens[..], &done.tokens].concat());
    let texts = texts.collect();
    (plain, texts)
}

/// Drafts of every length up to 16, and of 64, each with a wrong token at every place, for one, two
/// and five sequences. Every other time fewer states are kept than a draft has tokens.
#[test]
fn a_draft_may_go_wrong_anywhere() {
    for family in Family::all() {
        for (lengths, n_seqs) in [(1..=16, &[1, 2, 5][..]), (64..=64, &[2][..])] {
            for n_max in lengths {
                // Texts that are long enough for one draft each and what follows it, and prompts that
                // differ in length.
                let n_prompt = n_seqs.iter().max().copied().unwrap_or_default();
                let requests = (0..n_prompt as u32).map(|i| prompt(i, n_max + 4));
                let requests: Vec<Request> = requests.collect();
                let (plain, texts) = plain(&family, &requests);
                for &n_seq in n_seqs {
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
                        let some = &requests[..n_seq];
                        let drafted = decode(&mut driver, some, 0.0);
                        let name = family.name();
                        let name = format!("{name}: {n_seq} x {n_max}, wrong at {first}");
                        assert_same(&name, &plain[..n_seq], &drafted);
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
    let (plain, texts) = plain(&family, &requests());
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
        let drafted = decode(&mut driver, &requests(), 0.0);
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
