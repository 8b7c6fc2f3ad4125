//! Every speculator on every architecture that can use it: tokens and logits are those of plain
//! decoding, bit for bit, for any draft length, any number of sequences, and wherever a draft
//! goes wrong.

use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use runner::Error;
use runner::batch::SeqId;
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::{Model, load_eagle3, load_mtp_head, load_target};
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{
    ChainConfig, Committed, Completion, DecodeConfig, DraftModel, DraftRequest, Driver, Eagle3,
    LookupFiles, Mtp, NgramCache, NgramSimple, Policy, Request, SpecType, Speculator, TargetPass,
    TranslatedDraft, Verification,
};
use schemas::gguf::Plan;
use schemas::vocab::{Translation, VocabMap, Vocabulary};

type Drafters = Vec<Box<dyn Speculator<Cpu>>>;

const N_PREDICT: usize = 40;

fn backend() -> Arc<Cpu> {
    Arc::new(
        Cpu::new(CpuConfig {
            threads: 2,
            isa: None,
        })
        .unwrap(),
    )
}

fn context(model: Model<Cpu>, backend: &Arc<Cpu>, n_seq: usize, n_max: usize) -> Context<Cpu> {
    let cache = CacheConfig {
        n_seq,
        n_ctx: 128,
        n_rollback: n_max,
        types: CacheTypes::default(),
    };
    let n_outputs = n_seq * (n_max + 1);
    let sizes = ContextConfig {
        cache,
        n_batch: n_outputs.max(16),
        n_outputs,
    };
    Context::new(Arc::clone(backend), model, sizes).unwrap()
}

/// Prompts of different lengths; the first is longer than a batch and repeats itself.
fn requests() -> Vec<Request> {
    let text = |seed: u32, len: u32| (0..len).map(|i| (i % 17 * seed) % 251).collect();
    [(3, 50), (7, 5), (11, 21), (19, 1), (23, 33)]
        .iter()
        .map(|&(seed, len)| Request {
            id: format!("prompt-{seed}"),
            tokens: text(seed, len),
            n_predict: N_PREDICT,
        })
        .collect()
}

fn decode(plan: &Plan, drafters: Drafters, n_seq: usize, temperature: f32) -> Vec<Completion> {
    decode_by(Policy::First, plan, drafters, n_seq, temperature)
}

fn decode_by(
    policy: Policy,
    plan: &Plan,
    drafters: Drafters,
    n_seq: usize,
    temperature: f32,
) -> Vec<Completion> {
    let n_max = drafters.iter().map(|d| d.n_max()).max().unwrap_or(0);
    let backend = backend();
    let mut model = load_target(&*backend, plan).unwrap();
    model.taps = fixtures::target_layers(plan);
    let target = context(model, &backend, n_seq, n_max);
    let mut config = DecodeConfig {
        sampler: Sampler::new(SampleConfig::at(temperature, 5)).unwrap(),
        verification: Verification::Match,
        is_end: &|token| token == fixtures::EOS,
        on_token: &mut |_| {},
        on_failure: &mut |failure| panic!("{failure:?}"),
    };
    Driver::new(target, drafters, policy)
        .decode(&requests(), &mut config)
        .unwrap()
        .0
}

fn assert_same(name: &str, plain: &[Completion], drafted: &[Completion]) {
    for (i, (plain, drafted)) in plain.iter().zip(drafted).enumerate() {
        assert_eq!(plain.tokens, drafted.tokens, "{name}: tokens of prompt {i}");
        assert_eq!(plain.hashes, drafted.hashes, "{name}: logits of prompt {i}");
        assert_eq!(plain.stop, drafted.stop, "{name}: end of prompt {i}");
    }
}

fn arch(plan: &Plan) -> &str {
    plan.metadata.need_str("general.architecture").unwrap()
}

/// Of every architecture, every number of sequences with every length of drafts; greedy and drawn in
/// turn, so that each of both is met either way.
#[test]
fn no_speculator_changes_a_text() {
    const TEMPERATURES: [f32; 2] = [0.0, 0.8];
    for plan in fixtures::all() {
        let plain = TEMPERATURES.map(|temperature| decode(&plan, Vec::new(), 1, temperature));
        for (i, n_seq) in [1, 2, 5].into_iter().enumerate() {
            for (plain, temperature) in plain.iter().zip(TEMPERATURES) {
                let together = decode(&plan, Vec::new(), n_seq, temperature);
                assert_same("no drafts", plain, &together);
            }
            for (j, n_max) in [1, 3, 8].into_iter().enumerate() {
                let way = (i + j) % TEMPERATURES.len();
                let (plain, temperature) = (&plain[way], TEMPERATURES[way]);
                for drafters in drafters(&plan, n_seq, n_max) {
                    let names: Vec<_> = drafters.iter().map(|d| d.kind().name()).collect();
                    let name = format!(
                        "{} {names:?} n_seq {n_seq} n_max {n_max} temperature {temperature}",
                        arch(&plan)
                    );
                    let drafted = decode(&plan, drafters, n_seq, temperature);
                    assert_same(&name, plain, &drafted);
                }
            }
        }
    }
}

/// Each speculator that the model can use, and all of them in a row.
fn drafters(plan: &Plan, n_seq: usize, n_max: usize) -> Vec<Drafters> {
    let backend = backend();
    let ngram = || -> Box<dyn Speculator<Cpu>> {
        let size = |n: usize| n.try_into().unwrap();
        Box::new(NgramSimple {
            n: size(2),
            m: size(n_max.max(2)),
        })
    };
    let simple = || -> Box<dyn Speculator<Cpu>> {
        let llama = fixtures::all().next().unwrap();
        let model = load_target(&*backend, &llama).unwrap();
        Box::new(DraftModel::new(
            context(model, &backend, n_seq, n_max),
            ChainConfig::of_length(n_max),
        ))
    };
    let mut all: Vec<Drafters> = vec![vec![ngram()], vec![simple()], vec![ngram(), simple()]];
    let files = Arc::new(LookupFiles::default());
    all.push(vec![Box::new(NgramCache::new(files, n_seq))]);
    let stutter = vocab_map(|token| vec![token; (token % 3) as usize]);
    let llama = fixtures::all().next().unwrap();
    all.push(translated(stutter, &llama, n_seq, n_max));
    if let Ok(head) = load_mtp_head(&*backend, plan) {
        all.push(vec![Box::new(Mtp::new(
            context(head, &backend, n_seq, n_max),
            ChainConfig::of_length(n_max),
        ))]);
    }
    // Both kinds occur, as draft lengths are even and odd.
    let draft = &fixtures::eagle3(plan)[n_max % 2];
    let (model, fusion) = load_eagle3(&*backend, draft, plan).unwrap();
    let context = context(model, &backend, n_seq, n_max);
    let chain = ChainConfig::of_length(n_max);
    all.push(vec![Box::new(Eagle3::new(context, fusion, chain))]);
    all
}

/// What is drafted, and how much of it accepted, does not depend on the other sequences: each
/// speculator's own caches are in step with its sequence.
#[test]
fn drafts_do_not_depend_on_other_sequences() {
    let counts = |completions: &[Completion]| -> Vec<Vec<u64>> {
        let lengths = completions.iter().map(|c| c.tally.accepted_lengths.clone());
        lengths.collect()
    };
    for plan in fixtures::all() {
        for (i, alone) in drafters(&plan, 1, 3).into_iter().enumerate() {
            let alone = counts(&decode(&plan, alone, 1, 0.0));
            for n_seq in [2, 5] {
                let beside = drafters(&plan, n_seq, 3).swap_remove(i);
                let name = format!("{} drafters {i} n_seq {n_seq}", arch(&plan));
                assert_eq!(alone, counts(&decode(&plan, beside, n_seq, 0.0)), "{name}");
            }
        }
    }
}

/// A map between equal vocabularies, in which some tokens become two, and some none.
fn vocab_map(sequence: impl Fn(u32) -> Vec<u32>) -> VocabMap {
    let side = || Vocabulary {
        n_tokens: fixtures::N_VOCAB as u32,
        sha256: String::new(),
    };
    let tokens = || 0..fixtures::N_VOCAB as u32;
    VocabMap {
        target: side(),
        draft: side(),
        target_to_draft: Translation::new(tokens().map(sequence)),
        draft_to_target: Translation::new(tokens().map(|token| vec![token])),
    }
}

fn translated(map: VocabMap, draft: &Plan, n_seq: usize, n_max: usize) -> Drafters {
    let backend = backend();
    let model = load_target(&*backend, draft).unwrap();
    // Texts may become longer.
    let context = context(model, &backend, n_seq, n_max);
    let chain = ChainConfig::of_length(n_max);
    vec![Box::new(TranslatedDraft::new(context, map, chain))]
}

/// With a map that changes nothing, a translated draft is the draft: the model's caches follow the
/// text in the same way.
#[test]
fn a_translation_of_nothing_changes_nothing() {
    let counts = |completions: &[Completion]| -> Vec<Vec<u64>> {
        let lengths = completions.iter().map(|c| c.tally.accepted_lengths.clone());
        lengths.collect()
    };
    for plan in fixtures::all() {
        for n_seq in [1, 2] {
            // A model that drafts for itself is always right, so there is something to count.
            let backend = backend();
            let model = load_target(&*backend, &plan).unwrap();
            let context = context(model, &backend, n_seq, 3);
            let direct = DraftModel::new(context, ChainConfig::of_length(3));
            let direct = decode(&plan, vec![Box::new(direct)], n_seq, 0.0);
            let map = vocab_map(|token| vec![token]);
            let mapped = decode(&plan, translated(map, &plan, n_seq, 3), n_seq, 0.0);
            assert_same("translated", &direct, &mapped);
            assert_eq!(counts(&direct), counts(&mapped), "{}", arch(&plan));
            assert!(direct.iter().all(|c| c.tally.acceptance() > Some(0.9)));
        }
    }
}

/// Drafts what the target will say, but for the places where it is told to be wrong: so every
/// number of accepted tokens is met, which random weights alone would not bring about.
struct Oracle {
    texts: Vec<Vec<u32>>,
    n_max: usize,
    /// Place of the next wrong token, by text.
    wrong: Vec<usize>,
}

impl Speculator<Cpu> for Oracle {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        self.n_max
    }

    fn begin(&mut self, _: SeqId, _: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    fn process(&mut self, _: &TargetPass<'_, Cpu>) -> Result<(), Error> {
        Ok(())
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            let known = [request.history, &[request.last]].concat();
            let starts = |text: &Vec<u32>| text.starts_with(&known);
            let i = self.texts.iter().position(starts).unwrap();
            let text = &self.texts[i];
            let end = (known.len() + request.n_max).min(text.len());
            request.draft = text[known.len()..end].to_vec();
            let wrong = self.wrong[i] % (self.n_max + 1);
            self.wrong[i] += 1;
            if let Some(token) = request.draft.get_mut(wrong) {
                *token = (*token + 1) % 251;
            }
        }
        Ok(())
    }

    fn accept(&mut self, _: Committed) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn a_draft_may_go_wrong_anywhere() {
    for plan in fixtures::all() {
        let plain = decode(&plan, Vec::new(), 1, 0.0);
        let texts: Vec<Vec<u32>> = requests()
            .iter()
            .zip(&plain)
            .map(|(request, done)| [&request.tokens[..], &done.tokens].concat())
            .collect();
        for n_max in 1..=9 {
            for n_seq in [1, 3] {
                let wrong = (0..texts.len()).map(|i| 2 * i).collect();
                let oracle = Oracle {
                    texts: texts.clone(),
                    n_max,
                    wrong,
                };
                let drafted = decode(&plan, vec![Box::new(oracle)], n_seq, 0.0);
                assert_same(&format!("{} oracle {n_max}", arch(&plan)), &plain, &drafted);
                let mut lengths = vec![0; n_max + 1];
                for completion in &drafted {
                    for (k, n) in completion.tally.accepted_lengths.iter().enumerate() {
                        lengths[k] += n;
                    }
                }
                assert!(
                    lengths.iter().all(|&n| n > 0),
                    "all lengths were met: {lengths:?}"
                );
            }
        }
    }
}

/// The text is the same whichever draft is checked, and the better drafter is the one that is asked
/// for more of them.
#[test]
fn the_best_draft_is_checked() {
    let plan = fixtures::all().next().unwrap();
    let plain = decode(&plan, Vec::new(), 1, 0.0);
    let texts: Vec<Vec<u32>> = requests()
        .iter()
        .zip(&plain)
        .map(|(request, done)| [&request.tokens[..], &done.tokens].concat())
        .collect();
    let drafters = || -> Drafters {
        let size = |n: usize| n.try_into().unwrap();
        // Wrong at one place of nine, another one each time; the other just repeats the text.
        let good = Oracle {
            texts: texts.clone(),
            n_max: 8,
            wrong: vec![3; texts.len()],
        };
        let bad = NgramSimple {
            n: size(1),
            m: size(8),
        };
        vec![Box::new(bad), Box::new(good)]
    };
    for n_seq in [1, 3] {
        let drafted = decode_by(Policy::Best, &plan, drafters(), n_seq, 0.0);
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

/// Fails after some calls.
struct Faulty {
    n_left: usize,
}

impl Faulty {
    fn step(&mut self) -> Result<(), Error> {
        self.n_left = self.n_left.checked_sub(1).ok_or(Error::Rollback {
            seq: 0,
            len: 1,
            oldest: 2,
        })?;
        Ok(())
    }
}

impl Speculator<Cpu> for Faulty {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        4
    }

    fn begin(&mut self, _: SeqId, _: &[u32]) -> Result<(), Error> {
        self.step()
    }

    fn process(&mut self, _: &TargetPass<'_, Cpu>) -> Result<(), Error> {
        self.step()
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            request.draft = vec![7; request.n_max];
        }
        self.step()
    }

    fn accept(&mut self, _: Committed) -> Result<(), Error> {
        self.step()
    }
}

#[test]
fn a_speculator_that_fails_is_switched_off() {
    let plan = fixtures::all().last().unwrap();
    let plain = decode(&plan, Vec::new(), 1, 0.0);
    for n_left in 0..12 {
        let backend = backend();
        let target = context(load_target(&*backend, &plan).unwrap(), &backend, 2, 4);
        let size = |n: usize| n.try_into().unwrap();
        let ngram = NgramSimple {
            n: size(2),
            m: size(4),
        };
        let drafters: Drafters = vec![Box::new(Faulty { n_left }), Box::new(ngram)];
        let mut failed = Vec::new();
        let mut config = DecodeConfig {
            sampler: Sampler::new(SampleConfig::GREEDY).unwrap(),
            verification: Verification::Match,
            is_end: &|token| token == fixtures::EOS,
            on_token: &mut |_| {},
            on_failure: &mut |failure| failed.push(failure.kind),
        };
        let mut driver = Driver::new(target, drafters, Policy::First);
        let (drafted, _) = driver.decode(&requests(), &mut config).unwrap();
        assert_same("faulty", &plain, &drafted);
        assert_eq!(failed, [SpecType::DraftSimple], "after {n_left} calls");
    }
}
