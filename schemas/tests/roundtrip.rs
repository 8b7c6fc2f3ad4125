//! Files are read as they were written: random metadata and tensors, both versions, any alignment,
//! single files and split models.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use schemas::gguf::{
    Array, DType, FileLayout, Metadata, Output, Owned, Plan, SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS,
    ShardConfig, ShardStyle, Tensor, Value, WriteConfig, check, layout, open, open_one, part_paths,
    shard, shard_paths, size_bytes, write,
};

fn write_to(plan: &Plan, path: &Path, threads: usize) {
    let config = WriteConfig {
        threads,
        ..WriteConfig::new()
    };
    write(&[Output { plan, path }], &config).unwrap();
}

/// Compares everything but the sources, then their bytes.
fn assert_same(found: &Plan, expected: &Plan) {
    assert_eq!(found.version, expected.version);
    assert_eq!(found.metadata.len(), expected.metadata.len());
    for (found, expected) in found.metadata.iter().zip(expected.metadata.iter()) {
        assert_eq!(found.0, expected.0);
        assert_eq!(format!("{:?}", found.1), format!("{:?}", expected.1));
    }
    assert_eq!(found.tensors.len(), expected.tensors.len());
    for (found, expected) in found.tensors.iter().zip(&expected.tensors) {
        assert_eq!(
            (&found.name, &found.shape, found.dtype),
            (&expected.name, &expected.shape, expected.dtype)
        );
        assert_eq!(found.read_all().unwrap(), expected.read_all().unwrap());
    }
}

fn any_text() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

fn any_value() -> impl Strategy<Value = Value> {
    let array = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(vec(any::<u8>(), 0..9), 0..9).prop_map(|texts| Array::String(texts.iter().collect())),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
    ];
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        vec(any::<u8>(), 0..20).prop_map(|bytes| Value::String(bytes.into())),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
        array.prop_map(Value::Array),
    ]
}

/// Types without blocks and of several block lengths.
fn any_dtype() -> impl Strategy<Value = DType> {
    prop_oneof![
        Just(DType::F32),
        any::<prop::sample::Index>().prop_map(|i| {
            let all: Vec<DType> = DType::all().collect();
            *i.get(&all)
        })
    ]
}

fn any_tensor(i: usize) -> impl Strategy<Value = Tensor> {
    (any_dtype(), vec(0..4u64, 1..=4)).prop_map(move |(dtype, mut shape)| {
        shape[0] *= dtype.layout().expect("from the table").block_len;
        let size = size_bytes(dtype, &shape).expect("rows are whole blocks");
        common::raw_tensor(&format!("tensor.{i}"), dtype, &shape, size)
    })
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let entries = vec((any_text(), any_value()), 0..12);
    let tensors = (0..6usize).prop_flat_map(|n| (0..n).map(any_tensor).collect::<Vec<_>>());
    let alignment = prop_oneof![Just(None), (0..11u32).prop_map(|bits| Some(1u32 << bits))];
    (2..=3u32, entries, alignment, tensors).prop_map(|(version, entries, alignment, tensors)| {
        let mut metadata = Metadata::new();
        for (i, (key, value)) in entries.into_iter().enumerate() {
            metadata.set(format!("{i}.{key}"), value);
        }
        if let Some(alignment) = alignment {
            metadata.set("general.alignment", alignment);
        }
        Plan {
            version,
            metadata,
            tensors,
        }
    })
}

proptest! {
    #[test]
    fn written_then_read_is_the_same(plan in any_plan(), threads in 1..4usize) {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("1.gguf"), folder.path().join("2.gguf"));
        write_to(&plan, &first, threads);
        let read = open_one(&first).unwrap();
        assert_same(&read, &plan);
        // Reading and writing again gives the same bytes, whatever the number of threads.
        write_to(&read, &second, 4 - threads);
        let bytes = fs::read(&first).unwrap();
        prop_assert_eq!(&bytes, &fs::read(&second).unwrap());
        prop_assert_eq!(&bytes, &common::file_bytes(&plan));
        prop_assert_eq!(check(&bytes), Ok(()));
        let FileLayout { size_bytes, .. } = layout(&plan).unwrap();
        prop_assert_eq!(bytes.len() as u64, size_bytes);
    }

    /// However a model is split, its shards are read as the whole model.
    #[test]
    fn split_then_merged_is_the_same(
        plan in any_plan(),
        max_bytes in prop_oneof![Just(None), (1..2000u64).prop_map(Some)],
        max_tensors in prop_oneof![Just(None), (1..4usize).prop_map(Some)],
        tensor_free_first: bool,
        style in prop_oneof![Just(ShardStyle::Converter), Just(ShardStyle::SplitTool)],
    ) {
        let config = ShardConfig { max_bytes, max_tensors, tensor_free_first, style };
        let parts = shard(&plan, &config).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let paths = match parts[0].metadata.contains(SPLIT_COUNT) {
            true => shard_paths(&path, parts.len()),
            false => vec![path],
        };
        let outputs = parts.iter().zip(&paths);
        let outputs: Vec<_> = outputs.map(|(plan, path)| Output { plan, path }).collect();
        write(&outputs, &WriteConfig::new()).unwrap();
        let merged = open(&paths[0]).unwrap();
        prop_assert_eq!(common::file_bytes(&merged), common::file_bytes(&plan));
        prop_assert_eq!(part_paths(&paths[0]).unwrap(), paths);
        for (i, part) in parts.iter().enumerate() {
            let is_free = tensor_free_first && i == 0 && parts.len() > 1;
            prop_assert_eq!(part.tensors.is_empty(), is_free || plan.tensors.is_empty());
            prop_assert!(max_tensors.is_none_or(|max| part.tensors.len() <= max));
            let fits = max_bytes.is_none_or(|max| part.data_bytes() <= max);
            prop_assert!(fits || part.tensors.len() == 1);
        }
    }

    /// Any bytes after the magic are read or rejected, without a panic.
    #[test]
    fn random_bytes_do_no_harm(tail in vec(any::<u8>(), 0..200)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tail);
        let _ = check(&bytes);
    }
}

#[test]
fn plans_that_no_reader_would_take_are_refused() {
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = common::one_of_everything();
        change(&mut plan);
        layout(&plan).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&|plan| plan.tensors[1].name = plan.tensors[0].name.clone()),
        "tensor token_embd.weight appears twice"
    );
    assert_eq!(
        refused(&|plan| plan.tensors[0].name = "n".repeat(64)),
        format!(
            "tensor {:?}: name of 64 bytes, expected 1 to 63",
            "n".repeat(64)
        )
    );
    assert_eq!(
        refused(&|plan| plan.tensors[0].shape = vec![64, 3, 1, 1, 1]),
        "tensor token_embd.weight: 5 dimensions, expected 1 to 4"
    );
    assert_eq!(
        refused(&|plan| plan.metadata.set("general.alignment", 48u32)),
        "key general.alignment: expected a power of two as u32, found 48"
    );
}

/// Shards as llama.cpp writes them: the first has all keys, and offsets start at 0 in each.
fn write_parts(folder: &Path, whole: &Plan, cut: usize) -> Vec<PathBuf> {
    let count = 2;
    let part = |no: usize, tensors: &[Tensor]| {
        let mut plan = match no {
            0 => Plan::new(whole.metadata.clone()),
            _ => Plan::new(Metadata::new()),
        };
        plan.metadata.set(SPLIT_NO, no as u16);
        plan.metadata.set(SPLIT_COUNT, count as u16);
        plan.metadata.set(SPLIT_TENSORS, whole.tensors.len() as i32);
        plan.tensors = tensors.to_vec();
        let path = folder.join(format!("m-{:05}-of-{count:05}.gguf", no + 1));
        write_to(&plan, &path, 1);
        path
    };
    let (first, second) = whole.tensors.split_at(cut);
    vec![part(0, first), part(1, second)]
}

/// [`common::one_of_everything`] with the default alignment, because later shards have no alignment
/// key here.
fn whole() -> Plan {
    let mut plan = common::one_of_everything();
    plan.metadata.remove("general.alignment");
    plan
}

#[test]
fn parts_are_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    for cut in [0, 1, 3] {
        let parts = write_parts(folder.path(), &whole(), cut);
        assert_same(&open(&parts[0]).unwrap(), &whole());
    }
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let parts = write_parts(folder.path(), &whole(), 2);
    let [first, second] = [0, 1].map(|i| parts[i].display().to_string());
    let refused = |path: &Path| match open(path) {
        Ok(_) => panic!("{} was read", path.display()),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        refused(&parts[1]),
        format!("{second}: shard 2 of 2 of a split model; open the first shard instead")
    );
    let renamed = folder.path().join("renamed.gguf");
    fs::copy(&parts[0], &renamed).unwrap();
    assert_eq!(
        refused(&renamed),
        format!(
            "{}: one of 2 shards, but the name does not end in -00001-of-00002.gguf",
            renamed.display()
        )
    );
    // A second shard with the number of the first.
    fs::copy(&parts[0], &parts[1]).unwrap();
    assert_eq!(
        refused(&parts[0]),
        format!("{second}: expected shard 2 of the split model, found shard 1")
    );
    // A second shard that repeats a tensor of the first, and one that lacks a tensor.
    let mut part = open_one(&write_parts(folder.path(), &whole(), 2)[1]).unwrap();
    part.tensors[1] = whole().tensors[0].clone();
    write_to(&part, &parts[1], 1);
    assert_eq!(
        refused(&parts[0]),
        format!("{second}: tensor token_embd.weight also appears in an earlier shard")
    );
    part.tensors.pop();
    part.metadata.set(SPLIT_COUNT, 3u16);
    write_to(&part, &parts[1], 1);
    assert_eq!(
        refused(&parts[0]),
        format!(
            "{second}: key split.count: expected 2 as in the first shard, found 3; the shard belongs to another model"
        )
    );
    part.metadata.set(SPLIT_COUNT, 2u16);
    write_to(&part, &parts[1], 1);
    assert_eq!(
        refused(&parts[0]),
        format!("{first}: 3 tensors in all shards, expected 4")
    );
    fs::remove_file(&parts[1]).unwrap();
    assert_eq!(
        refused(&parts[0]),
        format!("{second}: No such file or directory (os error 2)")
    );
}

#[test]
fn bytes_in_memory_are_a_source() {
    let owned = Owned {
        bytes: (0..12).collect(),
        row_bytes: 4,
    };
    let mut out = [0; 8];
    schemas::gguf::Source::read(&owned, 1..3, &mut out).unwrap();
    assert_eq!(out, [4, 5, 6, 7, 8, 9, 10, 11]);
}
