//! Every speculator on every architecture that can use it: tokens and logits are those of plain
//! decoding, bit for bit, for any draft length, any number of sequences, and wherever a draft
//! goes wrong.

use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use runner::Error;
use runner::batch::SeqId;
use runner::cache::CacheConfig;
use runner::context::{Context, ContextConfig};
use runner::model::{Model, load_mtp_head, load_target};
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{
    Committed, Completion, DecodeConfig, DraftModel, DraftRequest, Driver, Mtp, NgramSimple,
    Request, SpecType, Speculator, TargetPass,
};
use schemas::gguf::Plan;

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
    let n_max = drafters.iter().map(|d| d.n_max()).max().unwrap_or(0);
    let backend = backend();
    let target = context(
        load_target(&*backend, plan).unwrap(),
        &backend,
        n_seq,
        n_max,
    );
    let mut config = DecodeConfig {
        sampler: Sampler::new(SampleConfig {
            temperature,
            seed: 5,
        })
        .unwrap(),
        is_end: &|token| token == fixtures::EOS,
        on_token: &mut |_| {},
    };
    Driver::new(target, drafters)
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

#[test]
fn no_speculator_changes_a_text() {
    for plan in fixtures::all() {
        for temperature in [0.0, 0.8] {
            let plain = decode(&plan, Vec::new(), 1, temperature);
            for n_seq in [1, 2, 5] {
                assert_same(
                    "no drafts",
                    &plain,
                    &decode(&plan, Vec::new(), n_seq, temperature),
                );
                for n_max in [1, 3, 8] {
                    for drafters in drafters(&plan, n_seq, n_max) {
                        let names: Vec<_> = drafters.iter().map(|d| d.kind().name()).collect();
                        let name = format!(
                            "{} {names:?} n_seq {n_seq} n_max {n_max} temperature {temperature}",
                            arch(&plan)
                        );
                        let drafted = decode(&plan, drafters, n_seq, temperature);
                        assert_same(&name, &plain, &drafted);
                    }
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
            n_max,
        ))
    };
    let mut all: Vec<Drafters> = vec![vec![ngram()], vec![simple()], vec![ngram(), simple()]];
    if let Ok(head) = load_mtp_head(&*backend, plan) {
        all.push(vec![Box::new(Mtp::new(
            context(head, &backend, n_seq, n_max),
            n_max,
        ))]);
    }
    all
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
