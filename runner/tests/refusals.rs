//! Models that cannot run are rejected with a message, and before any large allocation.

use kernels::cpu::{Cpu, CpuConfig};
use peak_alloc::PeakAlloc;
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::load_target;
use schemas::arch::{Hparams, Need, keys};
use schemas::gguf::{DType, Owned, Plan, Tensor, Value};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Far above the size of the tiny models, far below what an unchecked number would allocate.
const MAX_MB: f32 = 256.0;

fn cpu() -> Cpu {
    let config = CpuConfig {
        threads: 1,
        ..CpuConfig::default()
    };
    Cpu::new(config).unwrap()
}

/// Returns the error message, if the model cannot run.
fn refusal(plan: &Plan) -> Option<String> {
    let cpu = cpu();
    let model = match load_target(&cpu, plan) {
        Ok(model) => model,
        Err(error) => return Some(error.to_string()),
    };
    let cache = CacheConfig {
        n_seq: 1,
        n_ctx: 8,
        n_rollback: 0,
        types: CacheTypes::default(),
    };
    let sizes = ContextConfig {
        cache,
        n_batch: 1,
        n_outputs: 1,
    };
    let context = Context::new(std::sync::Arc::new(cpu), model, sizes);
    context.err().map(|error| error.to_string())
}

/// True for tensors of the model without its MTP heads: heads are loaded separately.
fn is_of_trunk(plan: &Plan, tensor: &Tensor) -> bool {
    let arch = plan.metadata.need_str(keys::ARCHITECTURE).unwrap();
    let count = |key| plan.metadata.u32(&format!("{arch}.{key}")).unwrap();
    let n_mtp = count(keys::NEXTN_PREDICT_LAYERS).unwrap_or(0);
    let n_layer = count(keys::BLOCK_COUNT).unwrap() - n_mtp;
    let block = tensor.name.strip_prefix("blk.");
    let block = block.and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    block.is_none_or(|block| block < n_layer)
}

#[test]
fn tensors_that_are_missing_are_named() {
    for plan in fixtures::all() {
        let hparams = Hparams::from_plan(&plan).unwrap();
        let rows = hparams.arch.expected(&hparams);
        let mut n_needed = 0;
        for i in 0..plan.tensors.len() {
            let mut plan = plan.clone();
            let tensor = plan.tensors.remove(i);
            let is_needed = rows
                .iter()
                .any(|row| row.name == tensor.name && row.spec.need == Need::Required);
            if is_needed && is_of_trunk(&plan, &tensor) {
                let message = refusal(&plan).expect(&tensor.name);
                // Without this tensor, a file with a head looks like the head alone.
                let is_marker = tensor.name == "blk.0.attn_norm.weight" && hparams.n_mtp() > 0;
                // Without its router, a layer looks dense.
                let is_router = hparams.arch.blocks.dense_by_tensors
                    && tensor.name.ends_with("ffn_gate_inp.weight");
                if is_marker {
                    assert!(message.contains("blk.0 is missing"), "{message}");
                } else if is_router {
                    let others = ["_exps.weight", "ffn_gate_inp.scale"];
                    let is_named = |other| message.contains(&format!("{other} is not part of"));
                    assert!(others.into_iter().any(is_named), "{message}");
                } else {
                    assert_eq!(message, format!("tensor {} is missing", tensor.name));
                }
                n_needed += 1;
            }
        }
        assert!(n_needed > 20, "{}: {n_needed}", hparams.arch.name);
    }
}

#[test]
fn misshapen_tensors_are_named_with_both_shapes() {
    for plan in fixtures::all() {
        for i in 0..plan.tensors.len() {
            let mut plan = plan.clone();
            let tensor = &mut plan.tensors[i];
            let expected = tensor.shape.clone();
            let mut shape = expected.clone();
            shape[0] += 1;
            let row_bytes = 4 * shape[0];
            let n_rows: u64 = shape[1..].iter().product();
            let bytes = vec![0; (row_bytes * n_rows) as usize];
            let source = std::sync::Arc::new(Owned { bytes, row_bytes });
            *tensor = Tensor::new(&tensor.name, shape.clone(), DType::F32, source).unwrap();
            let name = tensor.name.clone();
            let message = format!("tensor {name}: shape {shape:?}, expected {expected:?}");
            assert_eq!(refusal(&plan), Some(message));
        }
    }
}

#[test]
fn types_without_a_kernel_are_named() {
    for plan in fixtures::all() {
        for i in 0..plan.tensors.len() {
            let mut plan = plan.clone();
            let tensor = &mut plan.tensors[i];
            let row_bytes = 8 * tensor.shape[0];
            let n_rows: u64 = tensor.shape[1..].iter().product();
            let bytes = vec![0; (row_bytes * n_rows) as usize];
            let source = std::sync::Arc::new(Owned { bytes, row_bytes });
            let shape = tensor.shape.clone();
            *tensor = Tensor::new(&tensor.name, shape, DType::F64, source).unwrap();
            let tensor = tensor.clone();
            if is_of_trunk(&plan, &tensor) {
                let message = refusal(&plan).expect(&tensor.name);
                assert!(message.starts_with(&format!("tensor {}: ", tensor.name)));
                assert!(message.contains("F64"), "{message}");
            }
        }
    }
}

/// Replaces every number of the metadata by invalid values: each is rejected by a key or a tensor,
/// or has no effect.
#[test]
fn absurd_numbers_are_refused() {
    for plan in fixtures::all() {
        let arch = plan.metadata.need_str(keys::ARCHITECTURE).unwrap();
        let numbers: Vec<String> = plan
            .metadata
            .iter()
            .filter(|(key, value)| key.starts_with(arch) && matches!(value, Value::U32(_)))
            .map(|(key, _)| key.to_owned())
            .collect();
        for key in numbers {
            for absurd in [0, 1, 3, 1 << 20, u32::MAX] {
                let mut plan = plan.clone();
                plan.metadata.set(key.clone(), absurd);
                if let Some(message) = refusal(&plan) {
                    let has_subject = ["key ", "tensor ", "the file holds only an MTP head"];
                    assert!(
                        has_subject.iter().any(|word| message.contains(word)),
                        "{key} = {absurd}: {message}"
                    );
                }
            }
        }
    }
    assert!(ALLOCATED.peak_usage_as_mb() < MAX_MB);
}

/// For every cache type, the required memory is compared with the available memory.
#[test]
fn caches_beyond_memory_are_refused() {
    let plan = fixtures::all().next().unwrap();
    for (name, bytes_per_32) in [("f32", 128), ("f16", 64), ("bf16", 64), ("q8_0", 34)] {
        let names = kernels::backend::CacheType::names();
        let (_, element) = *names.iter().find(|(known, _)| *known == name).unwrap();
        let cpu = cpu();
        let model = load_target(&cpu, &plan).unwrap();
        let n_layer = model.kinds().len() as u128;
        let n_ctx = 1 << 40;
        let cache = CacheConfig {
            n_seq: 2,
            n_ctx,
            n_rollback: 0,
            types: CacheTypes {
                k: element,
                v: element,
            },
        };
        let sizes = ContextConfig {
            cache,
            n_batch: 1,
            n_outputs: 1,
        };
        let context = Context::new(std::sync::Arc::new(cpu), model, sizes);
        let message = context.err().expect("no machine has it").to_string();
        // Two heads of 32 elements, keys and values, in every layer.
        let need = n_layer * 2 * n_ctx as u128 * 2 * 2 * bytes_per_32;
        let start = format!("2 sequences of {n_ctx} positions need {need} bytes of cache");
        assert!(message.starts_with(&start), "{name}: {message}");
    }
}
