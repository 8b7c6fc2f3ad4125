//! Speculators that fail.

use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{DecodeConfig, Policy, Proof, SpecType, TextConfig};

use crate::mock::Faulty;
use crate::setup::{Drafters, Family, Kind, N_PREDICT, assert_same, requests};

#[test]
fn a_speculator_that_fails_is_switched_off() {
    let family = Family::of(fixtures::all().last().unwrap());
    let plain = family.decode(Vec::new(), 1, 0, 0.0);
    for n_left in 0..14 {
        let ngram = family.speculator(Kind::NgramSimple, 2, 4);
        let drafters: Drafters = vec![Box::new(Faulty { n_left }), ngram];
        let mut failed = Vec::new();
        let text = TextConfig::new(Sampler::new(SampleConfig::GREEDY).unwrap());
        let text = text.with_proof(Proof::Logits);
        let mut config = DecodeConfig {
            on_failure: Some(&mut |failure| failed.push(failure.kind)),
            ..DecodeConfig::new(text, &|token| token == fixtures::EOS)
        };
        let mut driver = family.driver(drafters, Policy::First, 2, 4);
        let (drafted, _) = driver.decode(&requests(N_PREDICT), &mut config).unwrap();
        assert_same("faulty", &plain, &drafted);
        assert_eq!(failed, [SpecType::DraftSimple], "after {n_left} calls");
    }
}
