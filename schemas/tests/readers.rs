//! Compares our reader with independent ones, the crates `gguf-rs-lib` and `gguf`: they read our
//! files, and we reject what they reject, except for the reasons listed here.

mod common;

use std::io::Cursor;

use gguf_rs_lib::reader::GGUFFileReader;
use gguf_rs_lib::tensor::TensorType;
use schemas::gguf::{DType, Plan, Value, check, layout};

/// A plan that both crates can represent: UTF-8 text, types that gguf-rs-lib knows, dimensions
/// above zero.
fn common_ground() -> Plan {
    let mut plan = common::one_of_everything();
    plan.metadata.set("a.bytes", Value::String("text".into()));
    plan.tensors
        .retain(|tensor| tensor.dtype.layout().is_some());
    for dtype in DType::all().filter(|dtype| is_known(*dtype)) {
        let block = dtype.layout().expect("a type of the table").block_len;
        let name = format!("type.{}", dtype.0);
        plan.tensors
            .push(common::tensor(&name, dtype, &[2 * block, 3]));
    }
    plan
}

fn is_known(dtype: DType) -> bool {
    TensorType::from_u32(dtype.0).is_ok_and(|known| known.block_size_bytes().is_some())
}

fn read(bytes: &[u8]) -> Result<GGUFFileReader<Cursor<&[u8]>>, String> {
    GGUFFileReader::new(Cursor::new(bytes)).map_err(|error| error.to_string())
}

#[test]
fn gguf_rs_lib_reads_what_we_write() {
    let plan = common_ground();
    let bytes = common::file_bytes(&plan);
    let layout = layout(&plan).unwrap();
    let mut found = read(&bytes).unwrap();
    assert_eq!(found.metadata().len(), plan.metadata.len());
    assert_eq!(found.tensor_count(), plan.tensors.len());
    let start = layout.offsets[0];
    for (tensor, offset) in plan.tensors.iter().zip(&layout.offsets) {
        let info = found.get_tensor_info(&tensor.name).unwrap();
        assert_eq!(info.shape().dims(), tensor.shape, "{}", tensor.name);
        assert_eq!(info.tensor_type() as u32, tensor.dtype.0);
        assert_eq!(info.data_offset(), offset - start);
        let data = found.load_tensor_data(&tensor.name).unwrap().unwrap();
        assert_eq!(
            data.as_slice(),
            tensor.read_all().unwrap(),
            "{}",
            tensor.name
        );
    }
    assert!(plan.tensors.len() > 20, "{} types", plan.tensors.len());
}

#[test]
fn gguf_reads_what_we_write_of_its_types() {
    let mut plan = common_ground();
    // The crate's ids of types after Q8_K differ from the format's.
    plan.tensors.retain(|tensor| tensor.dtype.0 <= 15);
    let bytes = common::file_bytes(&plan);
    let found = gguf::GGUFFile::read(&bytes).unwrap().expect("it is whole");
    assert_eq!(found.header.version, plan.version);
    let keys: Vec<&str> = found
        .header
        .metadata
        .iter()
        .map(|m| m.key.as_str())
        .collect();
    let expected: Vec<&str> = plan.metadata.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, expected);
    assert_eq!(found.tensors.len(), plan.tensors.len());
    for (found, expected) in found.tensors.iter().zip(&plan.tensors) {
        assert_eq!(found.name, expected.name);
        assert_eq!(found.dimensions, expected.shape);
        assert_eq!(found.tensor_type as u32, expected.dtype.0);
    }
}

/// Errors of gguf-rs-lib, by a part of the message, that are not errors for us, and the reasons.
const REASONS: &[(&str, &str)] = &[
    (
        "Unknown GGUF tensor type",
        "tensors of types that are newer than this program are carried unmodified",
    ),
    (
        "must be dot-separated lower_snake_case ASCII",
        "llama.cpp reads any key, and released files have keys with capital letters and hyphens",
    ),
    (
        "Invalid UTF-8 string",
        "tokens of byte-level vocabularies are values that need not be UTF-8",
    ),
    (
        "Unsupported GGUF version: 2",
        "version 2 has the same layout, and files of it are still in use",
    ),
];

#[test]
fn we_reject_what_gguf_rs_lib_rejects_or_list_a_reason() {
    let good = common::file_bytes(&common_ground());
    let header_len = layout(&common_ground()).unwrap().header.len();
    let mut unexplained = std::collections::BTreeMap::new();
    let mut used = std::collections::BTreeSet::new();
    let mut n_refused = 0;
    let mut compare = |bytes: &[u8], change: String| {
        let Err(message) = read(bytes) else { return };
        n_refused += 1;
        if check(bytes).is_err() {
            return;
        }
        match REASONS.iter().find(|(part, _)| message.contains(part)) {
            Some((part, _)) => drop(used.insert(*part)),
            None => drop(unexplained.insert(message, change)),
        }
    };
    for len in 0..good.len() {
        compare(&good[..len], format!("cut at {len}"));
    }
    let mut bytes = good.clone();
    for at in 0..header_len {
        for change in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            bytes[at] = good[at] ^ change;
            compare(&bytes, format!("byte {at} ^ {change}"));
        }
        bytes[at] = good[at];
    }
    assert!(unexplained.is_empty(), "{unexplained:#?}");
    assert!(n_refused > 1000, "only {n_refused}");
    let unused: Vec<_> = REASONS
        .iter()
        .filter(|(part, _)| !used.contains(part))
        .collect();
    assert!(unused.is_empty(), "reasons that nothing needs: {unused:?}");
}
