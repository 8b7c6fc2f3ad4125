//! Header bytes and tensor offsets of a plan. All of this is final before any data is read.

use super::super::dtype::DType;
use super::super::plan::{Plan, PlanError};
use super::super::read::MAGIC;
use super::super::value::{Array, Value};

/// Layout of a plan's file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileLayout {
    /// All bytes before the data, with padding.
    pub header: Vec<u8>,
    /// Offset of each tensor's data, from the start of the file.
    pub offsets: Vec<u64>,
    /// Size of the whole file, in bytes.
    pub size_bytes: u64,
}

/// Computes the layout of a plan: the header's bytes and the offset of every tensor.
///
/// # Errors
/// No reader would accept the plan.
pub fn layout(plan: &Plan) -> Result<FileLayout, PlanError> {
    plan.check()?;
    let alignment = plan.alignment()?;
    let mut header = MAGIC.to_vec();
    put_u32(&mut header, plan.version);
    put_u64(&mut header, plan.tensors.len() as u64);
    put_u64(&mut header, plan.metadata.len() as u64);
    for (key, value) in plan.metadata.iter() {
        put_string(&mut header, key.as_bytes());
        put_u32(&mut header, value.value_type() as u32);
        put_value(&mut header, value);
    }
    let mut offsets = Vec::with_capacity(plan.tensors.len());
    let mut end = 0u64;
    for tensor in &plan.tensors {
        put_string(&mut header, tensor.name.as_bytes());
        put_u32(&mut header, tensor.shape.len() as u32);
        tensor.shape.iter().for_each(|&ne| put_u64(&mut header, ne));
        let DType(id) = tensor.dtype;
        put_u32(&mut header, id);
        put_u64(&mut header, end);
        offsets.push(end);
        end = (end + tensor.size_bytes).next_multiple_of(alignment);
    }
    header.resize(header.len().next_multiple_of(alignment as usize), 0);
    let data_start = header.len() as u64;
    offsets.iter_mut().for_each(|offset| *offset += data_start);
    Ok(FileLayout {
        header,
        offsets,
        size_bytes: data_start + end,
    })
}

fn put_u32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    put_u64(out, text.len() as u64);
    out.extend_from_slice(text);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => put_u32(out, *v),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_string(out, v),
        Value::U64(v) => put_u64(out, *v),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Array(array) => {
            put_u32(out, array.item_type() as u32);
            put_u64(out, array.len() as u64);
            match array {
                Array::Bool(items) => out.extend(items.iter().map(|&v| u8::from(v))),
                Array::String(items) => items.iter().for_each(|text| put_string(out, text)),
                Array::U8(items) => out.extend_from_slice(items),
                Array::I8(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::U16(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::I16(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::U32(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::I32(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::F32(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::U64(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::I64(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::F64(items) => put_numbers(out, items, |v| v.to_le_bytes()),
            }
        }
    }
}

fn put_numbers<T: Copy, const N: usize>(
    out: &mut Vec<u8>,
    items: &[T],
    le_bytes: impl Fn(T) -> [u8; N],
) {
    items
        .iter()
        .for_each(|&v| out.extend_from_slice(&le_bytes(v)));
}
