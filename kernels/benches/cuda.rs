//! Copy rate of a CUDA device within its memory, the share of it that products with weights reach, and the
//! times of the other operations of a decoding step of a 7B model.
//!
//! usage: cuda [DEVICE | cpu]
//!
//! With `cpu` it measures the CPU in the same way. Without a device it prints what was looked for and exits
//! with 2.

#![expect(clippy::print_stdout, reason = "the figures are the result")]
#![expect(clippy::print_stderr, reason = "so is what stands in their way")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use kernels::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, CacheType, Rope, RopeLayout, WeightData,
};
use kernels::cpu::{Cpu, CpuConfig};
use kernels::cuda::{Cuda, DriverConfig, Launching};
use schemas::gguf::DType;

/// Elements per copy, far more than the caches hold.
const LEN: usize = 1 << 28;

/// Bytes of weights that products cycle through, more than the caches hold.
const RING_BYTES: usize = 256 << 20;

const ROUNDS: usize = 20;

/// Number of times an operation is queued before waiting.
const MANY: usize = 512;

/// Weight types, those of Q4_K_M and others, and shapes of a 7B model.
const TYPES: [DType; 4] = [DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::BF16];
const SHAPES: [(usize, usize); 3] = [(4096, 4096), (12288, 4096), (4096, 12288)];

/// Numbers of activation rows per product.
const WIDTHS: [usize; 6] = [1, 2, 4, 8, 16, 512];

const N_EMBD: usize = 4096;
const N_HEAD: usize = 32;
const N_HEAD_KV: usize = 8;
const HEAD_DIM: usize = 128;
const N_FF: usize = 12288;
const N_VOCAB: usize = 151_936;
const N_KEY: usize = 512;

fn main() -> ExitCode {
    let device = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let measured = match device.as_deref() {
        Some("cpu") => Cpu::new(CpuConfig::default())
            .map_err(Into::into)
            .and_then(|cpu| measure(&cpu, LEN >> 4)),
        index => open(index).and_then(|cuda| measure(&cuda, LEN)),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn open(index: Option<&str>) -> Result<Cuda, Box<dyn Error>> {
    let index = index.map_or(Ok(0), str::parse)?;
    let config = DriverConfig { index, cache: None };
    Ok(Cuda::open(config, Launching::Graphs)?)
}

/// Measures copies of `len` elements, then the other operations.
fn measure<B: Backend>(backend: &B, len: usize) -> Result<(), Box<dyn Error>> {
    let (src, mut dst) = (backend.buffer(len), backend.buffer(len));
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        wait(backend, &dst);
        let start = Instant::now();
        backend.copy_rows(&src, 0, &mut dst, 0, len, 1);
        wait(backend, &dst);
        best = best.min(start.elapsed().as_secs_f64());
    }
    // Every byte is read and written.
    let copies = (2 * len * size_of::<f32>()) as f64 / best;
    println!("{}: copies at {:.1} GB/s", backend.name(), copies / 1e9);
    drop((src, dst));
    for dtype in TYPES {
        for (n_rows, n_cols) in SHAPES {
            products(backend, dtype, n_rows, n_cols, copies)?;
        }
    }
    operations(backend)?;
    backend
        .failure()
        .map_or(Ok(()), |failure| Err(failure.into()))
}

/// Measures products with weights of a type and shape for several numbers of activation rows.
fn products<B: Backend>(
    backend: &B,
    dtype: DType,
    n_rows: usize,
    n_cols: usize,
    copies: f64,
) -> Result<(), Box<dyn Error>> {
    let row_bytes = dtype.row_bytes(n_cols as u64).ok_or("whole blocks")? as usize;
    let bytes = Arc::new(vec![0x11u8; n_rows * row_bytes]);
    let weights = (0..RING_BYTES.div_ceil(bytes.len())).map(|_| {
        backend.load(WeightData {
            dtype,
            n_rows,
            n_cols,
            bytes: Arc::clone(&bytes) as _,
        })
    });
    let weights = weights.collect::<Result<Vec<_>, _>>()?;
    print!("{:<5} {n_rows:>5} x {n_cols:>5}:", dtype.to_string());
    let mut of_one = 0.0;
    for n in WIDTHS {
        let x = upload(backend, n * n_cols);
        let mut out = backend.buffer(n * n_rows);
        // Products of many rows are compute-bound: one weight is enough.
        let weights = if n > 16 { &weights[..1] } else { &weights };
        let seconds = median(|| {
            for w in weights {
                backend.matmul(w, &x, n, &mut out);
            }
            wait(backend, &out);
        }) / weights.len() as f64;
        if n == 1 {
            of_one = seconds;
            let speed = bytes.len() as f64 / seconds;
            print!(
                " {:.0} GB/s, {:.2} of copies; T(n)/T(1)",
                speed / 1e9,
                speed / copies
            );
        } else if n <= 16 {
            print!(" {n}: {:.2}", seconds / of_one);
        } else {
            let work = 2.0 * (n * n_rows * n_cols) as f64;
            print!("; {n}: {:.1} TFLOP/s", work / seconds / 1e12);
        }
    }
    println!();
    Ok(())
}

/// Measures the other operations of a step for one activation row, each repeated many times.
fn operations<B: Backend>(backend: &B) -> Result<(), Box<dyn Error>> {
    let vector = |dim: usize| {
        let bytes: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), dim)
            .flatten()
            .collect();
        backend.load(WeightData {
            dtype: DType::F32,
            n_rows: 1,
            n_cols: dim,
            bytes: Arc::new(bytes),
        })
    };
    let (norm, head_norm) = (vector(N_EMBD)?, vector(HEAD_DIM)?);
    let mut x = upload(backend, N_EMBD);
    let mut y = upload(backend, N_EMBD);
    let mut small = upload(backend, 32);
    let (mut gate, up) = (upload(backend, N_FF), upload(backend, N_FF));
    let logits = upload(backend, N_VOCAB);
    let mut chosen = backend.chosen(1);
    let cache = CacheShape {
        n_rows: N_KEY,
        n_head: N_HEAD_KV,
        head_dim: HEAD_DIM,
        element: CacheType::F16,
    };
    let [mut keys, mut values] = [(); 2].map(|()| backend.cache(&cache));
    let rows: Vec<usize> = (0..N_KEY).collect();
    let past = upload(backend, N_KEY * N_HEAD_KV * HEAD_DIM);
    backend.store_rows(&past, &rows, &mut keys);
    backend.store_rows(&past, &rows, &mut values);
    let shape = AttentionShape {
        n_head: N_HEAD,
        n_head_kv: N_HEAD_KV,
        head_dim: HEAD_DIM,
        scale: (HEAD_DIM as f32).sqrt().recip(),
        window: None,
    };
    let rope = Rope {
        layout: RopeLayout::Neox,
        head_dim: HEAD_DIM,
        first: 0,
        inv_freq: (0..HEAD_DIM / 2)
            .map(|i| 1e6f32.powf(-(i as f32) / 64.0))
            .collect(),
        magnitude: 1.0,
    };
    let report = |name: &str, f: &mut dyn FnMut()| {
        let mut all = || (0..MANY).for_each(|_| f());
        all();
        wait(backend, &logits);
        let seconds = median(|| {
            all();
            wait(backend, &logits);
        });
        println!("{name:<44} {:>8.2} us", 1e6 * seconds / MANY as f64);
    };
    report("next to nothing (scale of 32)", &mut || {
        backend.scale(&mut small, 1.0, 32)
    });
    report("norm of 4096", &mut || {
        backend.rms_norm(&x, &norm, 1e-6, 1, &mut y)
    });
    report("sum and norm of 4096", &mut || {
        backend.add(&mut x, &y, N_EMBD);
        backend.rms_norm(&x, &norm, 1e-6, 1, &mut y);
    });
    report("norms of 32 heads of 128", &mut || {
        backend.rms_norm(&x, &head_norm, 1e-6, N_HEAD, &mut y);
    });
    report("rotations of 32 heads of 128", &mut || {
        backend.rope(&mut y, &rope, N_HEAD, &[7])
    });
    report("a row to a cache, f16", &mut || {
        backend.store_rows(&past, &[7], &mut keys)
    });
    report("gate of 12288", &mut || {
        backend.silu_mul(&mut gate, &up, N_FF)
    });
    for n_key in [64, N_KEY] {
        let name = format!("attention to {n_key} keys, f16");
        report(&name, &mut || {
            let (k, v) = (&keys, &values);
            let input = AttentionInput {
                q: &x,
                k,
                v,
                sinks: None,
            };
            backend.attention(&shape, input, std::slice::from_ref(&(0..n_key)), &mut y);
        });
    }
    report("choice among 151936", &mut || {
        backend.choose(&logits, N_VOCAB, None, &mut chosen, 0..1);
    });
    Ok(())
}

/// Returns the median of several times, after a warm-up run.
fn median(mut f: impl FnMut()) -> f64 {
    f();
    let mut times = [0.0; 5];
    for time in &mut times {
        let start = Instant::now();
        f();
        *time = start.elapsed().as_secs_f64();
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn upload<B: Backend>(backend: &B, len: usize) -> B::Buffer {
    let mut buffer = backend.buffer(len);
    let elements: Vec<f32> = (0..len).map(|i| (i % 31) as f32 / 31.0 - 0.5).collect();
    backend.upload(&elements, &mut buffer, 0);
    buffer
}

/// Waits until all queued work is complete.
fn wait<B: Backend>(backend: &B, buffer: &B::Buffer) {
    backend.download(buffer, 0, &mut [0.0]);
}
