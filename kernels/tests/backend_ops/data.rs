//! Random data, and transfers to and from a backend.

use std::sync::Arc;

use kernels::backend::{Backend, WeightData};
use kernels::types::codec;
use schemas::gguf::DType;

/// Returns a random weight, and its elements as its type represents them.
pub(crate) fn weight(
    random: &mut Random,
    dtype: DType,
    n_rows: usize,
    n_cols: usize,
) -> (WeightData, Vec<f32>) {
    let codec = codec(dtype).expect("the types in the table have codecs");
    let row_bytes = dtype.row_bytes(n_cols as u64).expect("whole blocks") as usize;
    let mut bytes = vec![0; n_rows * row_bytes];
    for bytes in bytes.chunks_exact_mut(row_bytes) {
        codec.quantize(&random.row(n_cols), None, bytes);
    }
    let mut held = vec![0.0; n_rows * n_cols];
    codec.dequantize(&bytes, &mut held);
    (
        WeightData {
            dtype,
            n_rows,
            n_cols,
            bytes: Arc::new(bytes),
        },
        held,
    )
}

pub(crate) fn load<B: Backend>(backend: &B, data: &WeightData) -> B::Weight {
    backend
        .load(data.clone())
        .expect("the types in the table have kernels")
}

pub(crate) fn upload<B: Backend>(backend: &B, elements: &[f32]) -> B::Buffer {
    let mut buffer = backend.buffer(elements.len());
    backend.upload(elements, &mut buffer, 0);
    buffer
}

pub(crate) fn download<B: Backend>(
    backend: &B,
    buffer: &B::Buffer,
    n: usize,
    dim: usize,
) -> Vec<Vec<f32>> {
    let mut elements = vec![0.0; n * dim];
    backend.download(buffer, 0, &mut elements);
    elements.chunks(dim).map(<[f32]>::to_vec).collect()
}

pub(crate) fn pick(rows: &[Vec<f32>], items: &[usize]) -> Vec<f32> {
    items.iter().flat_map(|&i| rows[i].clone()).collect()
}

pub(crate) fn largest(rows: &[Vec<f64>]) -> f64 {
    rows.iter().flatten().fold(0.0, |a, b| a.max(b.abs()))
}

pub(crate) fn f64_row(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&x| f64::from(x)).collect()
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Elements between -1 and 1.
    pub(crate) fn row(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect()
    }

    pub(crate) fn rows(&mut self, n: usize, dim: usize) -> Vec<Vec<f32>> {
        (0..n).map(|_| self.row(dim)).collect()
    }
}
