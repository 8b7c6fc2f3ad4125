//! Chains of speculators: each sequence has the text it has alone and without drafts, and each
//! speculator drafts and accepts for it as with a single sequence, whatever the other sequences do.

use kernels::backend::CacheType;
use proptest::prelude::*;
use runner::cache::CacheTypes;
use runner::speculate::{Completion, Driver, Policy, Request, SpecType};

use kernels::cpu::Cpu;

use crate::setup::{Family, Kind, assert_same, endless, request};

/// A setting of `specrun generate`.
#[derive(Clone, Debug)]
struct Setting {
    architecture: prop::sample::Index,
    chain: Vec<prop::sample::Index>,
    policy: Policy,
    n_seq: usize,
    temperature: f32,
    cache: CacheType,
    n_max: usize,
    n_rollback: usize,
    /// Tokens to generate for the longest prompt; the others get fewer.
    n_predict: usize,
}

fn settings() -> impl Strategy<Value = Setting> {
    let index = any::<prop::sample::Index>;
    let policies = Policy::NAMES.map(|(_, policy)| policy);
    let chain = (
        prop::collection::vec(index(), 1..=4),
        prop::sample::select(policies.to_vec()),
        1..=8usize,
        0..=4usize,
    );
    let target = (
        index(),
        prop::sample::select(vec![0.0, 0.8]),
        prop::sample::select(vec![CacheType::F16, CacheType::Q8_0]),
        1..=8usize,
        100..1100usize,
    );
    (chain, target).prop_map(|((chain, policy, n_max, n_rollback), target)| {
        let (architecture, temperature, cache, n_seq, n_predict) = target;
        Setting {
            architecture,
            chain,
            policy,
            n_seq,
            temperature,
            cache,
            n_max,
            n_rollback,
            n_predict,
        }
    })
}

/// Prompts of different lengths, more than there are sequences; some share a prefix of 70 tokens.
fn requests(n_predict: usize) -> Vec<Request> {
    let prefix = (0..70u32).map(|i| i * 11 % 37);
    (0..10u32)
        .map(|i| {
            let own = (0..5 + 13 * i % 60).map(|k| (k % 7 * (i + 3) + i) % 251);
            let tokens = match i % 3 {
                0 => prefix.clone().chain(own).collect(),
                _ => own.collect(),
            };
            request(tokens, n_predict - 9 * i as usize)
        })
        .collect()
}

/// The drawn speculators, at most one of each type.
fn chain(family: &Family, drawn: &[prop::sample::Index]) -> Vec<Kind> {
    let kinds = family.kinds();
    let mut chain: Vec<Kind> = Vec::new();
    for index in drawn {
        let kind = *index.get(&kinds);
        if chain
            .iter()
            .all(|other| other.spec_type() != kind.spec_type())
        {
            chain.push(kind);
        }
    }
    chain
}

fn decode(driver: &mut Driver<Cpu>, requests: &[Request], temperature: f32) -> Vec<Completion> {
    endless(temperature, |config| {
        driver.decode(requests, config).unwrap().0
    })
}

/// Drafted and accepted tokens of each text by speculator, in the order of the types' names.
fn counts(completions: &[Completion]) -> Vec<Vec<(SpecType, u64, u64)>> {
    let of_one = |completion: &Completion| {
        let tallies = completion.tally.speculators.iter();
        let mut counts: Vec<_> = tallies
            .map(|tally| (tally.kind, tally.n_drafted, tally.n_accepted))
            .collect();
        counts.sort_by_key(|(kind, ..)| kind.name());
        counts
    };
    completions.iter().map(of_one).collect()
}

fn check(setting: &Setting) {
    let plans: Vec<_> = fixtures::all().collect();
    let mut family = Family::of(setting.architecture.get(&plans).clone());
    family.n_ctx = 1300;
    family.types = CacheTypes {
        k: setting.cache,
        v: setting.cache,
    };
    let requests = requests(setting.n_predict);
    let chain = chain(&family, &setting.chain);
    let run = |chain: &[Kind], n_seq: usize| {
        let speculator = |&kind| family.speculator(kind, n_seq, setting.n_max);
        let drafters = chain.iter().map(speculator).collect();
        let mut driver = family.driver(drafters, setting.policy, n_seq, setting.n_rollback);
        decode(&mut driver, &requests, setting.temperature)
    };
    let name = format!("{} {chain:?} {setting:?}", family.name());
    let plain = run(&[], 1);
    let alone = run(&chain, 1);
    let together = run(&chain, setting.n_seq);
    assert_same(&name, &plain, &alone);
    assert_same(&name, &plain, &together);
    // The table of ngram-mod is shared by all sequences by design, and `best` uses the statistics
    // of all of them.
    let is_shared = chain.contains(&Kind::NgramMod) || setting.policy == Policy::Best;
    if !is_shared {
        assert_eq!(counts(&alone), counts(&together), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn a_chain_drafts_for_each_sequence_as_if_it_were_alone(setting in settings()) {
        check(&setting);
    }
}
