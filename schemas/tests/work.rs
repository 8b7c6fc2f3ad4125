//! Parts of any number of shards join to the bytes of one run.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::file_bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use schemas::gguf::{
    DType, FilePosition, Metadata, Output, Owned, Plan, ShardStyle, Source, SourceError, Tensor,
    WriteConfig, open_one, shard_by, write,
};
use schemas::work::{Joined, Part, PartFile, Slice, TensorShape, divide, join, part};

/// A source with a position in an input: tensors with the same one are cut at the same rows.
struct Computed {
    owned: Owned,
    offset: u64,
}

impl Source for Computed {
    fn read(&self, rows: std::ops::Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        self.owned.read(rows, out)
    }

    fn input(&self, _: u64) -> Option<FilePosition<'_>> {
        let path = Path::new("input");
        Some(FilePosition {
            path,
            offset: self.offset,
        })
    }
}

fn tensor(i: usize, dtype: DType, shape: &[u64], is_computed: bool) -> Tensor {
    let size_bytes = schemas::gguf::size_bytes(dtype, shape).unwrap();
    let bytes = (0..size_bytes)
        .map(|at| (at * 31 + i as u64 * 7) as u8)
        .collect();
    let row_bytes = dtype.row_bytes(shape[0]).unwrap();
    let owned = Owned { bytes, row_bytes };
    let source: Arc<dyn Source> = match is_computed {
        true => Arc::new(Computed {
            owned,
            offset: i as u64,
        }),
        false => Arc::new(owned),
    };
    Tensor::new(format!("blk.{i}.weight"), shape.to_vec(), dtype, source).unwrap()
}

fn shapes() -> impl Strategy<Value = Vec<(DType, Vec<u64>)>> {
    let dtypes = prop_oneof![
        Just(DType::F32),
        Just(DType::F16),
        Just(DType::Q8_0),
        Just(DType::Q4_0),
        Just(DType::Q4_K)
    ];
    let shape = prop_oneof![
        Just(vec![256]),
        (1u64..200).prop_map(|n| vec![256, n]),
        (1u64..9, 1u64..9).prop_map(|(n, m)| vec![512, n, m]),
    ];
    vec((dtypes, shape), 1..9)
}

/// Writes the parts of a number of shards, and joins them.
fn joined(folder: &Path, files: &[Plan], n_shards: usize) -> Vec<Vec<u8>> {
    let plans: Vec<&Plan> = files.iter().collect();
    let shards = divide(&plans, n_shards);
    assert_eq!(shards.len(), n_shards);
    let mut written: Vec<Vec<(Vec<Slice>, PathBuf)>> = files.iter().map(|_| Vec::new()).collect();
    for (no, parts) in shards.into_iter().enumerate() {
        for Part { file, slices } in parts {
            let path = folder.join(format!("{no}.{file}"));
            let plan = part(&files[file], &slices).unwrap();
            let output = Output {
                plan: &plan,
                path: &path,
            };
            write(&[output], &WriteConfig::new()).unwrap();
            written[file].push((slices, path));
        }
    }
    let join = |(plan, parts): (&Plan, Vec<(Vec<Slice>, PathBuf)>)| {
        let tensors = plan.tensors.iter().map(|tensor| TensorShape {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
        });
        let tensors: Vec<TensorShape> = tensors.collect();
        let opened: Vec<Plan> = parts
            .iter()
            .map(|(_, path)| open_one(path).unwrap())
            .collect();
        let parts_of = opened.iter().zip(&parts);
        let files: Vec<PartFile<'_>> = parts_of
            .map(|(plan, (slices, _))| PartFile { plan, slices })
            .collect();
        match join(&tensors, &files).unwrap() {
            Joined::Whole(index) => fs::read(&parts[index].1).unwrap(),
            Joined::Parts(plan) => file_bytes(&plan),
        }
    };
    files.iter().zip(written).map(join).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_join_to_the_bytes_of_one_run(
        shapes in shapes(),
        n_shards in 1usize..12,
        is_computed in any::<bool>(),
        has_other_types in any::<bool>(),
        alignment in prop_oneof![Just(32u32), Just(64), Just(4096)],
    ) {
        let mut metadata = Metadata::new();
        metadata.set("general.name", "model");
        if alignment != 32 {
            metadata.set("general.alignment", alignment);
        }
        let mut files = vec![Plan::new(metadata)];
        for (i, (dtype, shape)) in shapes.iter().enumerate() {
            files[0].tensors.push(tensor(i, *dtype, shape, is_computed));
        }
        if has_other_types {
            let mut other = Plan::new(Metadata::new());
            let tensors = shapes.iter().enumerate().rev();
            other.tensors.extend(tensors.map(|(i, (_, shape))| {
                tensor(i, DType::Q8_0, shape, is_computed)
            }));
            files.push(other);
        }
        let folder = tempfile::tempdir().unwrap();
        let expected: Vec<Vec<u8>> = files.iter().map(file_bytes).collect();
        prop_assert!(joined(folder.path(), &files, n_shards) == expected);
    }
}

#[test]
fn every_type_and_a_file_without_tensors_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        Plan::new(common::one_of_everything().metadata),
        common::one_of_everything(),
    ];
    let expected = files.each_ref().map(file_bytes);
    for n_shards in [1, 2, 11] {
        assert!(joined(folder.path(), &files, n_shards) == expected);
    }
}

/// A model of `n` equal tensors.
fn even(n: usize) -> Plan {
    let mut plan = Plan::new(Metadata::new());
    let tensors = (0..n).map(|i| tensor(i, DType::F32, &[64, 64], false));
    plan.tensors = tensors.collect();
    plan
}

#[test]
fn shards_are_even_and_keep_files_whole() {
    let plan = even(10);
    let n_rows = |parts: &Vec<Part>| {
        let slices = parts.iter().flat_map(|part| &part.slices);
        slices.map(|s| s.rows.end - s.rows.start).sum::<u64>()
    };
    for n in 1..=11 {
        let rows: Vec<u64> = divide(&[&plan], n).iter().map(n_rows).collect();
        assert_eq!(rows.iter().sum::<u64>(), 640);
        let ideal = 640 / n as u64;
        assert!(
            rows.iter().all(|&r| r.abs_diff(ideal) <= 1 + ideal / 32),
            "{rows:?}"
        );
    }
    let files = shard_by(&plan, &[3, 4, 3], ShardStyle::Converter).unwrap();
    let files: Vec<&Plan> = files.iter().collect();
    let found: Vec<Vec<usize>> = (divide(&files, 3).iter())
        .map(|parts| parts.iter().map(|part| part.slices.len()).collect())
        .collect();
    assert_eq!(found, [[3], [4], [3]]);
}

#[test]
fn parts_keep_the_alignment_of_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let plan = even(3);
    let layout = schemas::gguf::layout(&plan).unwrap();
    for parts in divide(&[&plan], 5) {
        for Part { slices, .. } in parts {
            let path = folder.path().join("part");
            let shard = part(&plan, &slices).unwrap();
            write(
                &[Output {
                    plan: &shard,
                    path: &path,
                }],
                &WriteConfig::new(),
            )
            .unwrap();
            for (tensor, slice) in open_one(&path).unwrap().tensors.iter().zip(slices) {
                let start = layout.offsets[slice.tensor] + slice.rows.start * 256;
                let origin = tensor.source.origin().unwrap().offset;
                assert_eq!(origin % 4096, start % 4096);
            }
        }
    }
}

#[test]
fn wrong_parts_are_refused() {
    let plan = even(4);
    let tensors: Vec<TensorShape> = (plan.tensors.iter())
        .map(|tensor| TensorShape {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
        })
        .collect();
    let shards: Vec<Vec<Slice>> = (divide(&[&plan], 3).into_iter())
        .map(|mut parts| parts.remove(0).slices)
        .collect();
    let plans: Vec<Plan> = shards.iter().map(|s| part(&plan, s).unwrap()).collect();
    let refused = |parts: &[(usize, usize)]| {
        let parts = parts.iter().map(|&(file, slices)| PartFile {
            plan: &plans[file],
            slices: &shards[slices],
        });
        let joined = join(&tensors, &parts.collect::<Vec<_>>());
        joined.map(drop).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&[(0, 0), (1, 1)]),
        "tensor blk.3.weight is in no part"
    );
    assert!(
        refused(&[(0, 0), (0, 0), (1, 1), (2, 2)]).contains("expected them to continue at row")
    );
    let swapped = refused(&[(2, 0), (1, 1), (0, 2)]);
    assert!(swapped.contains("rows of tensor blk.0.weight"), "{swapped}");
    assert!(refused(&[(1, 1), (2, 2)]).contains("expected them to continue at row 0"));
}
