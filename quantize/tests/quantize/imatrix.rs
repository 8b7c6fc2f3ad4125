//! Importance matrices: both formats, errors, and tensors without entries.

use std::fs;
use std::path::{Path, PathBuf};

use quantize::{FType, Imatrix, QuantizeConfig, plan};
use schemas::gguf::{DType, Metadata, Output, Plan, WriteConfig, write};

use crate::pipeline::{f32_tensor, llama};

/// A file in the legacy format.
fn legacy(entries: &[(&str, i32, &[f32])], tail: &[u8]) -> Vec<u8> {
    let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
    for (name, n_calls, values) in entries {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(n_calls.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes.extend(tail);
    bytes
}

fn file(dir: &Path, bytes: &[u8]) -> PathBuf {
    let path = dir.join("imatrix.dat");
    fs::write(&path, bytes).unwrap();
    path
}

/// A GGUF importance matrix with these sums and counts for one weight.
fn gguf(dir: &Path, sums: &[f32], n_columns: u64, counts: &[f32]) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("imatrix.datasets", vec!["text.txt".to_owned()]);
    metadata.set("imatrix.chunk_count", 4u32);
    metadata.set("imatrix.chunk_size", 512u32);
    let n_rows = sums.len() as u64 / n_columns;
    let tensors = vec![
        f32_tensor(
            "blk.0.ffn_up_exps.weight.in_sum2",
            &[n_columns, n_rows],
            sums,
        ),
        f32_tensor(
            "blk.0.ffn_up_exps.weight.counts",
            &[1, counts.len() as u64],
            counts,
        ),
    ];
    let plan = Plan {
        tensors,
        ..Plan::new(metadata)
    };
    let path = dir.join("imatrix.gguf");
    write(
        &[Output {
            plan: &plan,
            path: &path,
        }],
        &WriteConfig::new(),
    )
    .unwrap();
    path
}

fn open_error(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let error = Imatrix::open(&file(dir.path(), bytes)).unwrap_err();
    let text = error.to_string();
    let (_, reason) = text.split_once("imatrix.dat: ").expect(&text);
    reason.to_owned()
}

fn config(path: &Path, ftype: FType) -> QuantizeConfig {
    QuantizeConfig {
        imatrix: Some(Imatrix::open(path).unwrap()),
        ..QuantizeConfig::new(ftype)
    }
}

#[test]
fn sums_are_divided_by_counts_of_each_expert() {
    let dir = tempfile::tempdir().unwrap();
    let path = gguf(
        dir.path(),
        &[2.0, 4.0, 7.0, 9.0, 5.0, 5.0],
        2,
        &[2.0, 0.0, 2.6],
    );
    let imatrix = Imatrix::open(&path).unwrap();
    let values = imatrix.entry("blk.0.ffn_up_exps.weight").unwrap();
    let third = 5.0 / 3.0;
    assert_eq!(values[..], [1.0, 2.0, 1.0, 1.0, third, third]);
}

#[test]
fn the_older_format_tells_the_same() {
    let tail = [&7i32.to_le_bytes()[..], &4i32.to_le_bytes(), b"wiki"].concat();
    let bytes = legacy(
        &[("a.weight", 2, &[2.0, 3.0]), ("b.weight", 0, &[4.0])],
        &tail,
    );
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &bytes);
    let mut imatrix = Imatrix::open(&path).unwrap();
    assert_eq!(imatrix.entry("a.weight").unwrap()[..], [1.0, 1.5]);
    assert_eq!(imatrix.entry("b.weight").unwrap()[..], [4.0]);
    let input = llama(vec![]);
    let quantized = plan(&input, &config(&path, FType::Q4_0)).unwrap();
    let keys = quantized.plan.metadata.iter().skip(4);
    let keys: Vec<_> = keys.map(|(key, value)| format!("{key} {value}")).collect();
    assert_eq!(
        keys,
        [
            format!("quantize.imatrix.file {:?}", path.to_str().unwrap()),
            "quantize.imatrix.dataset \"wiki\"".to_owned(),
            "quantize.imatrix.entries_count 2".to_owned(),
            "quantize.imatrix.chunks_count 7".to_owned(),
        ]
    );
    imatrix.exclude(&["a.".to_owned()]);
    assert_eq!(imatrix.len(), 1);
    imatrix.include(&["a.".to_owned()]);
    assert!(imatrix.is_empty());
}

#[test]
fn truncated_files_and_wrong_lengths() {
    let whole = legacy(&[("a.weight", 1, &[2.0, 3.0])], &7i32.to_le_bytes());
    let without_tail = whole.len() - 4;
    for end in (0..whole.len()).filter(|&end| end != without_tail) {
        let reason = open_error(&whole[..end]);
        assert!(reason.starts_with("byte "), "{end}: {reason}");
    }
    let mut huge = whole.clone();
    huge[20..24].copy_from_slice(&i32::MAX.to_le_bytes());
    assert!(open_error(&huge).starts_with("byte 24: expected the values of an entry"));
    let mut negative = whole;
    negative[4..8].copy_from_slice(&(-1i32).to_le_bytes());
    assert!(open_error(&negative).starts_with("byte 4: expected the length of a name"));
}

#[test]
fn sums_and_counts_that_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let error = Imatrix::open(&gguf(dir.path(), &[1.0; 6], 2, &[1.0; 4])).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "entry blk.0.ffn_up_exps.weight: 6 sums, expected a multiple of the 4 counts"
        ),
        "{error}"
    );
}

/// Each expert is weighted with its own column values: a stack equals its experts quantized alone.
#[test]
fn experts_have_slices_of_their_own() {
    let name = "blk.0.ffn_up_exps.weight";
    let x: Vec<f32> = (0..32 * 4)
        .map(|i| ((i * 37) % 101) as f32 - 50.0)
        .collect();
    let importance: Vec<f32> = (0..64).map(|i| ((i * 13) % 29) as f32).collect();
    let dir = tempfile::tempdir().unwrap();
    let quantize = |shape: &[u64], x: &[f32], importance: &[f32]| {
        let path = file(dir.path(), &legacy(&[(name, 1, importance)], &[]));
        let input = llama(vec![f32_tensor(name, shape, x)]);
        let quantized = plan(&input, &config(&path, FType::Q4_0)).unwrap();
        assert!(!quantized.decisions[0].lacks_importance);
        quantized.plan.tensors[0].read_all().unwrap()
    };
    let stack = quantize(&[32, 2, 2], &x, &importance);
    let first = quantize(&[32, 2], &x[..64], &importance[..32]);
    let second = quantize(&[32, 2], &x[64..], &importance[32..]);
    assert_eq!(stack, [first, second].concat());
    let swapped = quantize(&[32, 2], &x[64..], &importance[..32]);
    assert_ne!(stack[swapped.len()..], swapped, "importance matters here");
}

#[test]
fn another_models_matrix_and_one_with_gaps() {
    let names = ["blk.0.attn_q.weight", "blk.0.attn_k.weight"];
    let x = vec![0.5; 512];
    let input = llama(names.map(|name| f32_tensor(name, &[256, 2], &x)).to_vec());
    let dir = tempfile::tempdir().unwrap();
    let error = |values: &[f32], ftype: FType| {
        let path = file(dir.path(), &legacy(&[(names[0], 1, values)], &[]));
        let refused = plan(&input, &config(&path, ftype)).map(|q| q.decisions);
        refused.unwrap_err().to_string()
    };
    assert!(error(&[1.0; 128], FType::Q4_K_M).starts_with(
        "tensor blk.0.attn_q.weight: expected 256 values in the importance matrix, found 128"
    ));
    assert!(
        error(&[1.0; 256], FType::Q2_K_S)
            .starts_with("tensor blk.0.attn_k.weight: Q2_K requires an importance matrix"),
        "found before anything is written"
    );
    let mut values = [1.0; 256];
    values[3] = f32::INFINITY;
    assert!(error(&values, FType::Q4_K_M).starts_with(
        "importance matrix, entry blk.0.attn_q.weight, value 3: expected a finite number"
    ));
    let path = file(dir.path(), &legacy(&[(names[0], 1, &[1.0; 256])], &[]));
    let decisions = plan(&input, &config(&path, FType::Q4_K_M))
        .unwrap()
        .decisions;
    let lacking = |d: &quantize::Decision| (d.tensor.clone(), d.to, d.lacks_importance);
    assert_eq!(
        decisions.iter().map(lacking).collect::<Vec<_>>(),
        [
            (names[1].to_owned(), DType::Q4_K, true),
            (names[0].to_owned(), DType::Q4_K, false)
        ]
    );
}
