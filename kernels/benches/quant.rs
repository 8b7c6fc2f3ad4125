//! Throughput of each codec on each instruction set, single-threaded, for four rows of 4096 columns in
//! cache, in bytes of `f32` (GB/s divided by 4 is weights).

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use kernels::quant::{QuantType, implementations};

const N_COLS: usize = 4096;
const N_ROWS: usize = 4;

fn main() {
    divan::main();
}

/// Pairs of implementation and type.
fn cases() -> Vec<(&'static str, &'static dyn QuantType)> {
    implementations()
        .iter()
        .flat_map(|i| i.types.map(|quant_type| (i.name, quant_type)))
        .collect()
}

fn labels() -> Vec<String> {
    cases()
        .iter()
        .map(|(name, quant_type)| format!("{} {name}", quant_type.dtype()))
        .collect()
}

fn find(label: &str) -> &'static dyn QuantType {
    let at = labels().iter().position(|l| l == label).expect("a label");
    cases()[at].1
}

/// Uniform numbers in -1..1.
fn rows() -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..N_ROWS * N_COLS).map(|_| next()).collect()
}

fn encoded(quant_type: &dyn QuantType) -> Vec<u8> {
    let n_bytes = quant_type
        .dtype()
        .row_bytes(N_COLS as u64)
        .expect("whole blocks");
    vec![0; N_ROWS * n_bytes as usize]
}

#[divan::bench(args = labels())]
fn quantize(bencher: Bencher<'_, '_>, label: &str) {
    let quant_type = find(label);
    let (x, mut out) = (rows(), encoded(quant_type));
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| quant_type.quantize(black_box(&x), None, &mut out));
}

#[divan::bench(args = labels())]
fn quantize_weighted(bencher: Bencher<'_, '_>, label: &str) {
    let quant_type = find(label);
    let (x, mut out) = (rows(), encoded(quant_type));
    let weights: Vec<f32> = x[..N_COLS].iter().rev().map(|x| x * x).collect();
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| quant_type.quantize(black_box(&x), Some(&weights), &mut out));
}

#[divan::bench(args = labels())]
fn dequantize(bencher: Bencher<'_, '_>, label: &str) {
    let quant_type = find(label);
    let (mut x, mut bytes) = (rows(), encoded(quant_type));
    quant_type.quantize(&x, None, &mut bytes);
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| quant_type.dequantize(black_box(&bytes), &mut x));
}

#[divan::bench(args = labels())]
fn find_invalid(bencher: Bencher<'_, '_>, label: &str) {
    let quant_type = find(label);
    let bytes = encoded(quant_type);
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| quant_type.find_invalid(black_box(&bytes)));
}
