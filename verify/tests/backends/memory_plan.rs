//! The memory that a run allocates equals the plan's report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kernels::backend::WeightData;
use runner::loaded_models::load_driver;
use runner::model_files::{DraftFiles, Files};
use runner::run_config::RunConfig;
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{DecodeConfig, DraftConfig, Request, SpecType};
use schemas::arch::{ROPE_FREQS, TOKEN_EXPERTS};
use schemas::gguf::{Output, Plan, WriteConfig, write};
use schemas::report::PlanPart;
use schemas::vocab::D2T;
use verify::memory_plan::{memory_plan, total};

use crate::forwarding::{ForwardingBackend, Hooks};

/// Counts allocated bytes.
#[derive(Clone, Default)]
struct Allocated {
    bytes: Arc<Mutex<u128>>,
    /// Bytes of weights by address: several models may share one.
    weights: Arc<Mutex<BTreeMap<usize, usize>>>,
}

impl Hooks for Allocated {
    fn before_allocation(&self, bytes: u128) {
        *self.bytes.lock().unwrap() += bytes;
    }

    fn before_load(&self, data: &WeightData) {
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
fn allocations_equal_the_plan() {
    for target in fixtures::all() {
        let dir = tempfile::tempdir().unwrap();
        let [eagle3, borrowing] = fixtures::eagle3(&target);
        let [dflash, dspark, dflash2] = fixtures::block_drafts(&target);
        let small = fixtures::all().next().unwrap();
        let model = write_model(dir.path(), "target.gguf", &target);
        let small = write_model(dir.path(), "small.gguf", &small);
        for (eagle3, block, kind, n_seq) in [
            (&eagle3, dflash, SpecType::DraftDflash, 1),
            (&borrowing, dspark, SpecType::DraftDspark, 3),
            (&borrowing, dflash2, SpecType::DraftDflash, 2),
        ] {
            let tensors = eagle3.tensors.iter().chain(&block.tensors);
            let tensors = tensors.chain(&target.tensors);
            // Read at load as numbers, not as weights of the backend.
            let ends = [
                "_conv_base",
                ROPE_FREQS,
                "layer_output_scale.weight",
                TOKEN_EXPERTS,
            ];
            let is_on_host = |name: &str| name == D2T || ends.iter().any(|end| name.ends_with(end));
            let on_host = tensors.filter(|tensor| is_on_host(&tensor.name));
            let host_bytes: u64 = on_host.map(|tensor| tensor.size_bytes).sum();
            let drafts = DraftFiles {
                models: vec![
                    small.clone(),
                    write_model(dir.path(), "eagle3.gguf", eagle3),
                    write_model(dir.path(), "block.gguf", &block),
                ],
                ..DraftFiles::default()
            };
            let files = Files::open(&model, &drafts).unwrap();
            let mut spec_types = vec![
                SpecType::DraftSimple,
                SpecType::DraftEagle3,
                kind,
                SpecType::NgramMapK,
            ];
            if files.model.hparams.n_mtp() > 0 {
                spec_types.push(SpecType::DraftMtp);
            }
            let config = RunConfig {
                drafting: DraftConfig::of_length(4),
                n_seq,
                ..RunConfig::new(spec_types, 100)
            };
            let allocated = Allocated::default();
            let backend = Arc::new(ForwardingBackend::new(allocated.clone()));
            let planned = memory_plan(&*backend, &files, &config).unwrap();
            assert_eq!(
                *allocated.bytes.lock().unwrap(),
                0,
                "a plan allocates nothing"
            );
            let mut driver = load_driver(&files, &backend, &config).unwrap();
            let requests = (0..4).map(|i| {
                let tokens = (0..70).map(|k| k * (3 + i) % 251).collect();
                Request::new(i.to_string(), tokens, 12)
            });
            let mut decode = DecodeConfig {
                on_failure: Some(&mut |failure| panic!("{failure:?}")),
                ..DecodeConfig::new(Sampler::new(SampleConfig::GREEDY).unwrap(), &|_| false)
            };
            let requests: Vec<Request> = requests.collect();
            driver.decode(&requests, &mut decode).unwrap();

            let weights: usize = allocated.weights.lock().unwrap().values().sum();
            let planned_weights: u64 = planned.parts.iter().map(|part| part.weight_bytes).sum();
            let planned_weights = planned_weights - host_bytes;
            let name = target.metadata.need_str("general.architecture").unwrap();
            assert_eq!(weights as u64, planned_weights, "{name}: weights");
            // Memory that the backend allocates.
            let own = |part: &PlanPart| {
                total(part) - part.weight_bytes - part.logit_bytes - part.table_bytes
            };
            let planned: u64 = planned.parts.iter().map(own).sum();
            assert_eq!(
                *allocated.bytes.lock().unwrap(),
                u128::from(planned),
                "{name}"
            );
        }
    }
}
