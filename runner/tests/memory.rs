//! The memory that a run allocates equals the plan's report.

mod accompanied;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use accompanied::{Accompanied, Beside};
use kernels::backend::WeightData;
use kernels::cpu::{Cpu, CpuConfig};
use runner::load::{DraftFiles, Files, RunCaches, RunConfig};
use runner::plan::{plan, total};
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{DecodeConfig, Drafting, Policy, Proof, Request, SpecType, Verification};
use schemas::gguf::{Output, Plan, WriteConfig, write};
use schemas::report::PlanPart;
use schemas::vocab::D2T;

/// Counts allocated bytes.
#[derive(Clone, Default)]
struct Taken {
    bytes: Arc<Mutex<u128>>,
    /// Bytes of weights by address: several models may share one.
    weights: Arc<Mutex<BTreeMap<usize, usize>>>,
}

impl Beside for Taken {
    fn take(&self, bytes: u128) {
        *self.bytes.lock().unwrap() += bytes;
    }

    fn load(&self, data: &WeightData) {
        let bytes: &[u8] = (*data.bytes).as_ref();
        let mut weights = self.weights.lock().unwrap();
        weights.insert(bytes.as_ptr().addr(), bytes.len());
    }
}

fn write_model(dir: &Path, name: &str, plan: &Plan) -> PathBuf {
    let mut plan = plan.clone();
    // Merges of fixtures produce tokens that the vocabulary does not have.
    plan.metadata
        .set("tokenizer.ggml.merges", Vec::<String>::new());
    let path = dir.join(name);
    let output = Output {
        plan: &plan,
        path: &path,
    };
    write(&[output], &WriteConfig::new()).unwrap();
    path
}

/// Covers every architecture with every draft, to the byte.
#[test]
fn what_is_taken_was_told() {
    for target in fixtures::all() {
        let dir = tempfile::tempdir().unwrap();
        let [eagle3, borrowing] = fixtures::eagle3(&target);
        let small = fixtures::all().next().unwrap();
        let model = write_model(dir.path(), "target.gguf", &target);
        let small = write_model(dir.path(), "small.gguf", &small);
        for (eagle3, n_seq) in [(eagle3, 1), (borrowing, 3)] {
            let d2t = eagle3.tensors.iter().find(|tensor| tensor.name == D2T);
            let d2t_bytes = d2t.map_or(0, |tensor| tensor.size_bytes);
            let drafts = DraftFiles {
                models: vec![
                    small.clone(),
                    write_model(dir.path(), "eagle3.gguf", &eagle3),
                ],
                ..DraftFiles::default()
            };
            let files = Files::open(&model, &drafts).unwrap();
            let mut spec_types = vec![
                SpecType::DraftSimple,
                SpecType::DraftEagle3,
                SpecType::NgramMapK,
            ];
            if files.model.hparams.n_mtp() > 0 {
                spec_types.push(SpecType::DraftMtp);
            }
            let config = RunConfig {
                spec_types,
                policy: Policy::First,
                drafting: Drafting::of_length(4),
                n_seq,
                n_ctx: 100,
                caches: RunCaches::default(),
            };
            let taken = Taken::default();
            let cpu = Cpu::new(CpuConfig {
                threads: 1,
                ..CpuConfig::default()
            });
            let backend = Arc::new(Accompanied {
                cpu: cpu.unwrap(),
                beside: taken.clone(),
            });
            let told = plan(&*backend, &files, &config).unwrap();
            assert_eq!(*taken.bytes.lock().unwrap(), 0, "a plan takes nothing");
            let mut driver = files.driver(&backend, &config).unwrap();
            let requests = (0..4).map(|i| Request {
                id: i.to_string(),
                tokens: (0..70).map(|k| k * (3 + i) % 251).collect(),
                embeddings: Vec::new(),
                n_predict: 12,
            });
            let mut decode = DecodeConfig {
                sampler: Sampler::new(SampleConfig::GREEDY).unwrap(),
                verification: Verification::Match,
                proof: Proof::None,
                is_end: &|_| false,
                on_token: &mut |_| {},
                on_round: &mut |_| {},
                on_failure: &mut |failure| panic!("{failure:?}"),
            };
            let requests: Vec<Request> = requests.collect();
            driver.decode(&requests, &mut decode).unwrap();

            let weights: usize = taken.weights.lock().unwrap().values().sum();
            let told_weights: u64 = told.parts.iter().map(|part| part.weight_bytes).sum();
            // The backend does not load a draft's `d2t` map as a weight.
            let told_weights = told_weights - d2t_bytes;
            let name = target.metadata.need_str("general.architecture").unwrap();
            assert_eq!(weights as u64, told_weights, "{name}: weights");
            // Memory that the backend allocates.
            let own = |part: &PlanPart| {
                total(part) - part.weight_bytes - part.logit_bytes - part.table_bytes
            };
            let told: u64 = told.parts.iter().map(own).sum();
            assert_eq!(*taken.bytes.lock().unwrap(), u128::from(told), "{name}");
        }
    }
}
