//! All head layouts: they agree with the architecture table, and files of architectures without
//! other tests can be split and grafted.

use graft::{diagnose, split_mtp};
use schemas::arch::nextn::{self, HEADS, HeadShape};
use schemas::arch::{Need, keys};
use schemas::gguf::{DType, Metadata, Plan};

use crate::model::{self, graft_mtp};

/// Builds a model from a head layout alone: three trunk layers and a head.
fn model_of(arch: &str) -> Plan {
    let layout = nextn::head_layout(arch).unwrap();
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
        for (i, row) in layout.layer.iter().enumerate() {
            add(&format!("blk.{block}.{}", row.name), vec![32, i as u64 + 2]);
        }
    }
    for (i, row) in layout.rows().enumerate() {
        let shape = match row.shape {
            HeadShape::Trunk => vec![32, i as u64 + 2],
            HeadShape::Width => vec![32],
            HeadShape::Joined => vec![64, 32],
            HeadShape::Vocab => vec![32, 3],
        };
        add(&format!("blk.3.{}", row.name), shape);
    }
    plan
}

#[test]
fn every_family_is_split_and_grafted() {
    for layout in HEADS {
        let whole = model_of(layout.arch);
        assert_eq!(diagnose(&whole), []);
        let halves = split_mtp(&whole).unwrap();
        let heads = |key: &str| {
            let key = format!("{}.{key}", layout.arch);
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
        let key = format!("{}.attention.head_count", layout.arch);
        body.metadata.set(key, 2u32);
        let again = graft_mtp(&body, &bare).unwrap();
        assert_eq!(names(&again), names(&whole));
    }
}

/// Heads are listed twice: by tensor name in the head layouts, with shapes and transforms in the
/// architecture table.
#[test]
fn the_table_is_that_of_the_architectures() {
    for plan in fixtures::all() {
        let arch = plan.metadata.need_str(keys::ARCHITECTURE).unwrap();
        let n_mtp = plan
            .metadata
            .u32(&format!("{arch}.nextn_predict_layers"))
            .unwrap();
        let Some(layout) = nextn::head_layout(arch) else {
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
        for row in layout.rows().filter(|row| row.need == Need::Required) {
            assert!(
                names.contains(&row.name),
                "{arch}: {} is required",
                row.name
            );
        }
        for name in names {
            assert!(layout.rows().any(|row| row.name == name), "{arch}: {name}");
        }
        let halves = split_mtp(&plan).unwrap();
        let again = graft_mtp(&halves.body, &halves.mtp).unwrap();
        assert_eq!(again.metadata, plan.metadata, "{arch}");
    }
}
