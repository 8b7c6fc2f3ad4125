//! Attention alone, at the shapes of small models, for every cache type: read rate of the caches while
//! decoding, and multiply-adds per second during prefill.
//!
//! Threads: all, or the number in `THREADS`. Queries: 1, 8 and 512, or the number in `ROWS`. Keys: 512 and 4096, or the
//! number in `KEYS`. The layers form a ring of 128 MiB, which is larger than the L2 caches, or of `RING_MB`.
//! Times are the medians of 5 rounds, or of `ROUNDS`. An argument selects the cases whose names contain it, such as `"4096 keys  f16"`.

#![allow(clippy::print_stdout, reason = "a bench reports on standard output")]

use std::time::Instant;

use kernels::backend::{
    AttentionInput, AttentionOp, AttentionShape, Backend, CacheOp, CacheShape, CacheType,
};
use kernels::cpu::{Buffer, Cache, Cpu, CpuConfig};

/// Name, query heads, key heads, elements of a head.
const SHAPES: [(&str, usize, usize, usize); 4] = [
    ("Qwen3 0.6B", 16, 8, 128),
    ("SmolLM2 135M", 9, 3, 64),
    ("Gemma 3 270M", 4, 1, 256),
    ("DeepSeek V2 Lite", 16, 1, 576),
];

/// Returns the number in an environment variable.
fn number(name: &str) -> Option<usize> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

fn main() {
    let threads = number("THREADS").unwrap_or(0);
    let ring_bytes = (number("RING_MB").unwrap_or(128) as u128) << 20;
    let cpu = Cpu::new(CpuConfig {
        threads,
        ..CpuConfig::default()
    })
    .expect("some instruction set is there");
    let rows = number("ROWS").map_or(vec![1, 8, 512], |n| vec![n]);
    let contexts = number("KEYS").map_or(vec![512, 4096], |n| vec![n]);
    let filters = || {
        std::env::args()
            .skip(1)
            .filter(|arg| !arg.starts_with("--"))
    };
    println!("{}, {} threads", cpu.name(), cpu.threads());
    for (name, n_head, n_head_kv, head_dim) in SHAPES {
        let shape = AttentionShape {
            n_head,
            n_head_kv,
            head_dim,
            scale: (head_dim as f32).sqrt().recip(),
            window: None,
        };
        for &n_ctx in &contexts {
            for (element_name, element) in CacheType::names() {
                let case = format!("{name:<16} {n_ctx:>4} keys {element_name:>4}");
                if !filters().all(|filter| case.contains(&filter)) {
                    continue;
                }
                print!("{case}:");
                let layers = Layers::new(&cpu, &shape, n_ctx, element, ring_bytes);
                for &n in &rows {
                    let seconds = layers.median_seconds(&cpu, &shape, n_ctx, n);
                    let n_key: usize = (n_ctx - n + 1..=n_ctx).sum();
                    let products = 2 * n_key * n_head * head_dim;
                    print!(
                        "  n = {n:>3} {:>8.3} ms {:>5.1} GB/s {:>5.1} GMAC/s",
                        1e3 * seconds,
                        layers.bytes as f64 / seconds / 1e9,
                        products as f64 / seconds / 1e9
                    );
                }
                println!();
            }
        }
    }
}

/// Caches of enough layers to fill the ring.
struct Layers {
    layers: Vec<[Cache; 2]>,
    /// Bytes of one layer.
    bytes: u128,
}

impl Layers {
    fn new(
        cpu: &Cpu,
        shape: &AttentionShape,
        n_ctx: usize,
        element: CacheType,
        ring_bytes: u128,
    ) -> Layers {
        let shape = CacheShape {
            n_rows: n_ctx,
            n_head: shape.n_head_kv,
            head_dim: shape.head_dim,
            element,
        };
        let rows: Vec<usize> = (0..n_ctx).collect();
        let elements = buffer(cpu, n_ctx * shape.n_head * shape.head_dim);
        let bytes = 2 * shape.bytes();
        let layer = || {
            [(); 2].map(|()| {
                let mut cache = cpu.cache(&shape);
                cpu.store_rows(&elements, &rows, &mut cache);
                cache
            })
        };
        Layers {
            layers: (0..ring_bytes.div_ceil(bytes)).map(|_| layer()).collect(),
            bytes,
        }
    }

    /// Returns the median time of one layer, for the last `n` rows of the context.
    fn median_seconds(&self, cpu: &Cpu, shape: &AttentionShape, n_ctx: usize, n: usize) -> f64 {
        let len = n * shape.n_head * shape.head_dim;
        let (q, mut out) = (buffer(cpu, len), cpu.buffer(len));
        let keys: Vec<_> = (n_ctx - n + 1..=n_ctx).map(|end| 0..end).collect();
        let n_layer = match n {
            ..=8 => self.layers.len(),
            _ => self.layers.len().min(2),
        };
        let n_round = number("ROUNDS").unwrap_or(5);
        let mut times: Vec<f64> = (0..n_round)
            .map(|_| {
                let start = Instant::now();
                for [k, v] in &self.layers[..n_layer] {
                    let (q, sinks) = (&q, None);
                    let input = AttentionInput { q, k, v, sinks };
                    cpu.attention(shape, input, &keys, &mut out);
                }
                start.elapsed().as_secs_f64() / n_layer as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[n_round / 2]
    }
}

/// Elements between -1 and 1.
fn buffer(cpu: &Cpu, len: usize) -> Buffer {
    let element = |i: usize| (i.wrapping_mul(2_654_435_761) % 2003) as f32 / 1001.0 - 1.0;
    let elements: Vec<f32> = (0..len).map(element).collect();
    let mut buffer = cpu.buffer(len);
    cpu.upload(&elements, &mut buffer, 0);
    buffer
}
