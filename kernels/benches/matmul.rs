//! Matrix products at the shapes of decoding: GB/s of weights per type and batch, compared with the plain
//! read rate of memory, then the cost of a batch relative to one row and the speed of a prompt.
//!
//! Threads: all, or the number in `THREADS`. `ISA` names the instruction set, `PREFETCH` is a value of
//! `--prefetch`, `TYPES` names the types. The weights form a ring larger than the caches, or of `RING_MB`. With
//! `RING_MB=0` there is one weight. `N_OUT` is its number of rows: 128 rows of quants stay in an L2 cache of 512 KB.
//! `PROMPT` is the number of activation rows of a prompt.

#![allow(clippy::print_stdout, reason = "a bench reports on standard output")]

use std::hint::black_box;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use divan::Bencher;
use divan::counter::BytesCount;
use kernels::backend::{Backend, MatmulOp, WeightBytes, WeightData};
use kernels::cpu::{Buffer, Cpu, CpuConfig, Weight};
use kernels::types::codec;
use rayon::prelude::*;
use schemas::gguf::DType;

const N_IN: usize = 2048;
const N_MAX: usize = 16;
/// Rows of a weight: `N_OUT`, or 2048.
static N_OUT: LazyLock<usize> = LazyLock::new(|| {
    std::env::var("N_OUT").map_or(2048, |n| n.parse().expect("N_OUT is a number"))
});
/// Activation rows of a prompt: `PROMPT`, or 512.
static PROMPT: LazyLock<usize> = LazyLock::new(|| {
    std::env::var("PROMPT").map_or(512, |n| n.parse().expect("PROMPT is a number"))
});
/// All types, or those that `TYPES` names.
static TYPES: LazyLock<Vec<DType>> = LazyLock::new(|| {
    let Ok(names) = std::env::var("TYPES") else {
        return ALL_TYPES.to_vec();
    };
    let named = |name: &str| {
        let mut types = ALL_TYPES.into_iter();
        let found = types.find(|dtype| name == dtype.to_string());
        found.unwrap_or_else(|| panic!("TYPES: unknown type {name}, expected one of {ALL_TYPES:?}"))
    };
    names.split(',').map(named).collect()
});
const ALL_TYPES: [DType; 18] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q6_K,
    DType::Q4_K,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_K,
    DType::Q2_K,
    DType::Q3_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::MXFP4,
    DType::IQ2_XS,
    DType::IQ3_S,
    DType::TQ2_0,
];

/// Bytes of weights in the ring: `RING_MB`, or 256. A few megabytes stay in the caches, so that the bench
/// measures arithmetic alone.
static RING_BYTES: LazyLock<usize> = LazyLock::new(|| {
    let mb = std::env::var("RING_MB").map_or(256, |n| n.parse().expect("RING_MB is a number"));
    mb << 20
});

static CPU: LazyLock<Cpu> = LazyLock::new(|| {
    let threads = std::env::var("THREADS").map_or(0, |n| n.parse().expect("THREADS is a number"));
    let isa = std::env::var("ISA").ok();
    let prefetch = std::env::var("PREFETCH").ok();
    let config = CpuConfig {
        threads,
        isa: isa.map(|isa| isa.parse().expect("ISA is an instruction set")),
        prefetch: prefetch.map(|value| value.parse().expect("PREFETCH is a value of --prefetch")),
        ..CpuConfig::default()
    };
    Cpu::new(config).expect("some instruction set is there")
});

fn main() {
    divan::main();
    ratios();
    prompts();
}

#[divan::bench]
fn memory_read(bencher: Bencher<'_, '_>) {
    let words = vec![1u64; *RING_BYTES / 8];
    let part = words.len() / rayon::current_num_threads();
    bencher.counter(BytesCount::new(*RING_BYTES)).bench(|| {
        words
            .par_chunks(part)
            .map(|part| part.iter().sum::<u64>())
            .sum::<u64>()
    });
}

#[divan::bench(args = cases())]
fn matmul(bencher: Bencher<'_, '_>, case: &Case) {
    let mut product = Product::new(case.dtype);
    bencher
        .counter(BytesCount::new(product.weight_bytes()))
        .bench_local(|| product.run(case.n));
}

struct Case {
    dtype: DType,
    n: usize,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} n = {}", self.dtype, self.n)
    }
}

fn cases() -> Vec<Case> {
    let with = |dtype| [1, 2, 4, 8, 16].map(|n| Case { dtype, n });
    TYPES.iter().copied().flat_map(with).collect()
}

/// Products one after another, each with the next weight of the ring.
struct Product {
    ring: Vec<Weight>,
    next: usize,
    x: Buffer,
    out: Buffer,
}

impl Product {
    fn new(dtype: DType) -> Product {
        let x: Vec<f32> = (0..N_MAX.max(*PROMPT) * N_IN)
            .map(|i| (i * 37 % 101) as f32 * 0.01 - 0.5)
            .collect();
        let row_bytes = dtype.row_bytes(N_IN as u64).expect("whole blocks") as usize;
        let mut bytes = vec![0; *N_OUT * row_bytes];
        let codec = codec(dtype).expect("a type with a codec");
        for (row, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            let at = row % N_MAX * N_IN;
            codec.quantize(&x[at..at + N_IN], None, bytes);
        }
        let load = |bytes: WeightBytes| {
            let data = WeightData {
                dtype,
                n_rows: *N_OUT,
                n_cols: N_IN,
                bytes,
            };
            CPU.load(data).expect("a type with a codec")
        };
        let n_weight = (*RING_BYTES / bytes.len()).max(1);
        let ring = (0..n_weight)
            .map(|_| load(Arc::new(bytes.clone())))
            .collect();
        let mut buffer = CPU.buffer(x.len());
        CPU.upload(&x, &mut buffer, 0);
        let mut product = Product {
            ring,
            next: 0,
            x: buffer,
            out: CPU.buffer(N_MAX.max(*PROMPT) * *N_OUT),
        };
        // The first product repacks the weight.
        (0..n_weight).for_each(|_| product.run(1));
        product
    }

    fn weight_bytes(&self) -> usize {
        CPU.weight_bytes(&self.ring[0])
    }

    fn run(&mut self, n: usize) {
        self.next = (self.next + 1) % self.ring.len();
        CPU.matmul(&self.ring[self.next], &self.x, n, &mut self.out);
        black_box(&self.out);
    }
}

/// Prints the time of a batch relative to one row. Batch sizes alternate, so that a slow moment of the
/// machine affects all of them.
fn ratios() {
    const ROUNDS: usize = 31;
    println!("T(n) / T(1), {} x {N_IN}, {}", *N_OUT, CPU.name());
    let sizes: Vec<String> = (1..=N_MAX).map(|n| format!("{n:>6}")).collect();
    println!("{:>6}{:>10}{}", "type", "T(1) us", sizes.concat());
    for &dtype in TYPES.iter() {
        let mut product = Product::new(dtype);
        let mut times = vec![Vec::new(); N_MAX];
        for _ in 0..ROUNDS {
            for (n, times) in times.iter_mut().enumerate() {
                let start = Instant::now();
                product.run(n + 1);
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        };
        let medians: Vec<f64> = times.iter_mut().map(median).collect();
        let row: Vec<String> = medians
            .iter()
            .map(|t| format!("{:>6.2}", t / medians[0]))
            .collect();
        println!(
            "{:>6}{:>10.2}{}",
            dtype.to_string(),
            medians[0],
            row.concat()
        );
    }
}

/// Prints the time of a prompt and its products per second, medians and best.
fn prompts() {
    const ROUNDS: usize = 31;
    println!("prompt of {}, {} x {N_IN}, {}", *PROMPT, *N_OUT, CPU.name());
    println!("{:>6}{:>10}{:>10}{:>10}", "type", "us", "GMAC/s", "best");
    for &dtype in TYPES.iter() {
        let mut product = Product::new(dtype);
        let mut times = [0.0; ROUNDS];
        for time in &mut times {
            let start = Instant::now();
            product.run(*PROMPT);
            *time = start.elapsed().as_secs_f64() * 1e6;
        }
        times.sort_by(f64::total_cmp);
        let time = times[ROUNDS / 2];
        let speed = |time: f64| (*PROMPT * *N_OUT * N_IN) as f64 / time / 1e3;
        println!(
            "{:>6}{time:>10.0}{:>10.1}{:>10.1}",
            dtype.to_string(),
            speed(time),
            speed(times[0])
        );
    }
}
