//! Throughput of each codec on each instruction set, single-threaded, for four rows of 4096 columns in
//! cache, in bytes of `f32` (GB/s divided by 4 is weights).

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use kernels::cpu::{Cpu, Isa};
use kernels::types::{Codec, TYPES};

const N_COLS: usize = 4096;
const N_ROWS: usize = 4;

fn main() {
    divan::main();
}

/// Pairs of instruction set and codec.
fn cases() -> Vec<(Isa, Codec)> {
    let of = |isa| TYPES.iter().map(move |t| (isa, t.codec(isa)));
    let all = Cpu::available().into_iter().flat_map(of);
    all.filter_map(|(isa, codec)| Some((isa, codec?))).collect()
}

fn labels() -> Vec<String> {
    cases()
        .iter()
        .map(|(isa, codec)| format!("{} {isa}", codec.dtype()))
        .collect()
}

fn find(label: &str) -> Codec {
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

fn encoded(codec: Codec) -> Vec<u8> {
    let n_bytes = codec
        .dtype()
        .row_bytes(N_COLS as u64)
        .expect("whole blocks");
    vec![0; N_ROWS * n_bytes as usize]
}

#[divan::bench(args = labels())]
fn quantize(bencher: Bencher<'_, '_>, label: &str) {
    let codec = find(label);
    let (x, mut out) = (rows(), encoded(codec));
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| codec.quantize(black_box(&x), None, &mut out));
}

#[divan::bench(args = labels())]
fn quantize_weighted(bencher: Bencher<'_, '_>, label: &str) {
    let codec = find(label);
    let (x, mut out) = (rows(), encoded(codec));
    let weights: Vec<f32> = x[..N_COLS].iter().rev().map(|x| x * x).collect();
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| codec.quantize(black_box(&x), Some(&weights), &mut out));
}

#[divan::bench(args = labels())]
fn dequantize(bencher: Bencher<'_, '_>, label: &str) {
    let codec = find(label);
    let (mut x, mut bytes) = (rows(), encoded(codec));
    codec.quantize(&x, None, &mut bytes);
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| codec.dequantize(black_box(&bytes), &mut x));
}

#[divan::bench(args = labels())]
fn find_invalid(bencher: Bencher<'_, '_>, label: &str) {
    let codec = find(label);
    let bytes = encoded(codec);
    bencher
        .counter(BytesCount::of_many::<f32>(N_ROWS * N_COLS))
        .bench_local(|| codec.find_invalid(black_box(&bytes)));
}
