//! Heads of every architecture: their tensors are those of the table, and files of architectures
//! without other tests can be split and grafted.

use graft::{diagnose, split_mtp};
use schemas::arch::nextn::{HeadShape, head_tensors};
use schemas::arch::{ARCHS, ArchSpec, Need, by_name, keys};
use schemas::gguf::{DType, Metadata, Plan};

use crate::model::{self, graft_mtp};

/// Builds a model from a head layout alone: three trunk layers and a head.
fn model_of(spec: &ArchSpec) -> Plan {
    let arch = spec.name;
    let mut m = Metadata::new();
    m.set(keys::ARCHITECTURE, arch);
    m.set(format!("{arch}.block_count"), 4u32);
    m.set(format!("{arch}.embedding_length"), 32u32);
    m.set(format!("{arch}.attention.head_count"), vec![2u32, 2, 4, 4]);
    m.set(format!("{arch}.nextn_predict_layers"), 1u32);
    m.set(keys::TOKENS, ["a", "b", "c"].map(String::from).to_vec());
    let mut plan = Plan::new(m);
    let mut add = |name: &str, shape: Vec<u64>| {
        let seed = plan.tensors.len();
        plan.tensors
            .push(model::tensor(name, shape, DType(77), seed));
    };
    add("token_embd.weight", vec![32, 3]);
    add("output_norm.weight", vec![32]);
    for block in 0..3 {
        for (i, tensor) in spec.head_layer().enumerate() {
            add(
                &format!("blk.{block}.{}", tensor.gguf),
                vec![32, i as u64 + 2],
            );
        }
    }
    for (i, tensor) in head_tensors(spec).enumerate() {
        let shape = match tensor.shape {
            HeadShape::Trunk => vec![32, i as u64 + 2],
            HeadShape::Width => vec![32],
            HeadShape::Joined => vec![64, 32],
            HeadShape::Vocab => vec![32, 3],
        };
        add(&format!("blk.3.{}", tensor.name), shape);
    }
    plan
}

#[test]
fn every_family_is_split_and_grafted() {
    for arch in ARCHS.iter().filter(|arch| arch.mtp.is_some()) {
        let whole = model_of(arch);
        assert_eq!(diagnose(&whole), []);
        let halves = split_mtp(&whole).unwrap();
        let heads = |key: &str| {
            let key = format!("{}.{key}", arch.name);
            halves.body.metadata.get(&key).map(ToString::to_string)
        };
        assert_eq!(heads("block_count").as_deref(), Some("3"));
        assert_eq!(heads("nextn_predict_layers"), None);
        assert_eq!(heads("attention.head_count").as_deref(), Some("[2, 2, 4]"));
        let again = graft_mtp(&halves.body, &halves.mtp).unwrap();
        assert_eq!(again.metadata, whole.metadata);
        let names = |plan: &Plan| {
            plan.tensors
                .iter()
                .map(|t| t.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&again), names(&whole));

        // Some donors are distributed as tensors without keys.
        let mut bare = halves.mtp.clone();
        bare.metadata = Metadata::new();
        bare.tensors.retain(|tensor| tensor.layer().is_some());
        let mut body = halves.body.clone();
        let key = format!("{}.attention.head_count", arch.name);
        body.metadata.set(key, 2u32);
        let again = graft_mtp(&body, &bare).unwrap();
        assert_eq!(names(&again), names(&whole));
    }
}

/// The list of a head's tensors that graft uses has those of a model with known hyperparameters.
#[test]
fn heads_of_models_have_the_listed_tensors() {
    for plan in fixtures::all() {
        let arch = plan.metadata.need_str(keys::ARCHITECTURE).unwrap();
        let n_mtp = plan
            .metadata
            .u32(&format!("{arch}.nextn_predict_layers"))
            .unwrap();
        let Some(spec) = by_name(arch).filter(|spec| spec.mtp.is_some()) else {
            assert_eq!(n_mtp.unwrap_or(0), 0, "{arch} has a head without a layout");
            continue;
        };
        let n_block = plan
            .metadata
            .need_u32(&format!("{arch}.block_count"))
            .unwrap();
        let head = format!("blk.{}.", n_block - 1);
        let names = plan
            .tensors
            .iter()
            .filter_map(|t| t.name.strip_prefix(&head));
        let names: Vec<&str> = names.collect();
        for row in head_tensors(spec).filter(|row| row.need == Need::Required) {
            assert!(
                names.contains(&row.name),
                "{arch}: {} is required",
                row.name
            );
        }
        for name in names {
            assert!(
                head_tensors(spec).any(|row| row.name == name),
                "{arch}: {name}"
            );
        }
        let halves = split_mtp(&plan).unwrap();
        let again = graft_mtp(&halves.body, &halves.mtp).unwrap();
        assert_eq!(again.metadata, plan.metadata, "{arch}");
    }
}
