//! Changes of a plan's tensors, and pseudo-random numbers.

use std::sync::Arc;

use kernels::types::codec;
use schemas::gguf::{Owned, Plan, Tensor};

use super::kinds::Files;

fn tensor<'a>(plan: &'a mut Plan, name: &str) -> &'a mut Tensor {
    let found = plan.tensors.iter_mut().find(|tensor| tensor.name == name);
    found.unwrap_or_else(|| panic!("no tensor {name}"))
}

pub(super) fn set_bytes(tensor: &mut Tensor, bytes: Vec<u8>) {
    let row_bytes = tensor.row_bytes();
    tensor.source = Arc::new(Owned { bytes, row_bytes });
}

fn change(tensor: &mut Tensor, change: impl FnOnce(&mut [f32], usize)) {
    let codec = codec(tensor.dtype).expect("the files are of BF16 and F32");
    let mut bytes = tensor.read_all().unwrap();
    let mut x = vec![0.0; tensor.n_elements() as usize];
    codec.dequantize(&bytes, &mut x);
    change(&mut x, tensor.ne0() as usize);
    codec.quantize(&x, None, &mut bytes);
    set_bytes(tensor, bytes);
}

/// Changes the values of a tensor; the closure gets the values and the row length.
pub(super) fn edit(plan: &mut Plan, name: &str, how: impl FnOnce(&mut [f32], usize)) {
    change(tensor(plan, name), how);
}

/// Changes the values of every tensor with a matching name.
pub(super) fn each(
    plan: &mut Plan,
    fits: impl Fn(&str) -> bool,
    mut how: impl FnMut(&mut [f32], usize),
) {
    let tensors = plan.tensors.iter_mut().filter(|tensor| fits(&tensor.name));
    tensors.for_each(|tensor| change(tensor, &mut how));
}

/// Returns the names of the matching tensors.
pub(super) fn names(plan: &Plan, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let names = plan.tensors.iter().map(|tensor| tensor.name.clone());
    names.filter(|name| fits(name)).collect()
}

/// Swaps the values of two tensors.
pub(super) fn swap(plan: &mut Plan, a: &str, b: &str) {
    let [x, y] = [a, b].map(|name| tensor(plan, name).read_all().unwrap());
    set_bytes(tensor(plan, a), y);
    set_bytes(tensor(plan, b), x);
}

/// Copies the values of one tensor to another.
pub(super) fn copy_tensor(plan: &mut Plan, from: &str, to: &str) {
    let bytes = tensor(plan, from).read_all().unwrap();
    set_bytes(tensor(plan, to), bytes);
}

/// Replaces a prefix of tensor names.
pub(super) fn rename(plan: &mut Plan, from: &str, to: &str) {
    for tensor in &mut plan.tensors {
        if let Some(rest) = tensor.name.strip_prefix(from) {
            tensor.name = format!("{to}{rest}");
        }
    }
}

pub(super) fn set_u32(files: &mut Files, key: &str, value: u32) {
    files.target.metadata.set(key, value);
}

/// Moves row `from(i)` to row `i`.
pub(super) fn permute(x: &mut [f32], width: usize, from: impl Fn(usize) -> usize) {
    let old = x.to_vec();
    for (i, row) in x.chunks_mut(width).enumerate() {
        row.copy_from_slice(&old[from(i) * width..][..width]);
    }
}

pub(super) fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

fn rms(x: &[f32]) -> f32 {
    (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt()
}

/// Returns a generator of approximately normal numbers: sums of twelve uniform ones.
fn normal(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move || {
        let mut sum = -6.0;
        for _ in 0..12 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            sum += (state >> 40) as f32 / (1u64 << 24) as f32;
        }
        sum
    }
}

/// Replaces the values with noise of the same RMS.
pub(super) fn noise(x: &mut [f32], seed: u64) {
    let (size, mut next) = (rms(x), normal(seed));
    x.iter_mut().for_each(|x| *x = size * next());
}

/// Adds noise with a share of the values' RMS.
pub(super) fn add_noise(x: &mut [f32], share: f32, seed: u64) {
    let (size, mut next) = (share * rms(x), normal(seed));
    x.iter_mut().for_each(|x| *x += size * next());
}

/// Returns the target token ids of a draft-to-target map.
pub(super) fn ids(tensor: &Tensor) -> Vec<i64> {
    let bytes = tensor.read_all().unwrap();
    let (ids, _) = bytes.as_chunks::<8>();
    ids.iter().map(|&id| i64::from_le_bytes(id)).collect()
}
