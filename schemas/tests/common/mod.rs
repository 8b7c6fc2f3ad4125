//! A small file with one of every feature of the format.

use std::sync::Arc;

use schemas::gguf::{DType, Metadata, Owned, Plan, Tensor, Value, layout};

/// Returns the bytes of a plan's file, with the writer's layout.
pub(crate) fn file_bytes(plan: &Plan) -> Vec<u8> {
    let layout = layout(plan).expect("the test's plan can be written");
    let mut bytes = layout.header;
    for (tensor, offset) in plan.tensors.iter().zip(layout.offsets) {
        bytes.resize(offset as usize, 0);
        bytes.extend(tensor.read_all().expect("the data is in memory"));
    }
    bytes.resize(layout.size_bytes as usize, 0);
    bytes
}

/// A tensor of this type and shape whose bytes count up.
pub(crate) fn tensor(name: &str, dtype: DType, shape: &[u64]) -> Tensor {
    let size = schemas::gguf::size_bytes(dtype, shape).expect("the test's shape is whole blocks");
    raw_tensor(name, dtype, shape, size)
}

/// The same with an explicit size, for unknown types.
pub(crate) fn raw_tensor(name: &str, dtype: DType, shape: &[u64], size_bytes: u64) -> Tensor {
    let row_bytes = dtype.row_bytes(shape[0]).unwrap_or(1).max(1);
    let bytes = (0..size_bytes).map(|i| i as u8).collect();
    Tensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype,
        size_bytes,
        source: Arc::new(Owned { bytes, row_bytes }),
    }
}

/// All value types, as scalars and arrays, and tensors of several types, one of them unknown.
#[allow(clippy::approx_constant)]
pub(crate) fn one_of_everything() -> Plan {
    let mut m = Metadata::new();
    m.set("general.architecture", "llama");
    m.set("a.u8", 1u8);
    m.set("a.i8", -1i8);
    m.set("a.u16", 2u16);
    m.set("a.i16", -2i16);
    m.set("a.u32", 3u32);
    m.set("a.i32", -3i32);
    m.set("a.f32", 1.5f32);
    m.set("a.bool", true);
    m.set("a.u64", 4u64);
    m.set("a.i64", -4i64);
    m.set("a.f64", 3.14f64);
    m.set("a.bytes", Value::String(b"\xff\xfe".into()));
    m.set("b.u8", vec![1u8, 2]);
    m.set("b.i8", vec![-1i8]);
    m.set("b.u16", vec![1u16]);
    m.set("b.i16", vec![-1i16]);
    m.set("b.u32", vec![1u32]);
    m.set("b.i32", vec![-1i32]);
    m.set("b.f32", vec![0.5f32]);
    m.set("b.bool", vec![true, false]);
    m.set("b.string", vec!["one".to_owned(), String::new()]);
    m.set("b.u64", vec![1u64]);
    m.set("b.i64", vec![-1i64]);
    m.set("b.f64", Vec::<f64>::new());
    m.set("general.alignment", 64u32);
    let mut plan = Plan::new(m);
    plan.tensors = vec![
        tensor("token_embd.weight", DType::Q8_0, &[64, 3]),
        tensor("blk.0.norm", DType::F32, &[5, 1, 1, 1]),
        raw_tensor("blk.0.unknown", DType(99), &[7, 2], 64),
        tensor("blk.0.ids", DType::I64, &[3]),
    ];
    plan
}
