//! Operations that a device joins into fewer launches must give the same results as one after another.

use std::sync::Arc;

use kernels::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, CacheType, Rope, RopeLayout, WeightData,
};
use kernels::cpu::Cpu;
use kernels::cuda::device::Device;
use kernels::cuda::{Cuda, Launching};
use schemas::gguf::DType;

use crate::data::{Random, load, upload, weight};
use crate::emulated::{Emulated, Order};

const N_EMBD: usize = 256;
const N_HEAD: usize = 4;
const N_HEAD_KV: usize = 2;
const HEAD_DIM: usize = 64;
const N_FF: usize = 512;
const N_LAYER: usize = 2;

/// Launches per layer: the norm with the sum before it and its quants; queries with keys, whose weights
/// have the same shape; values; norms of heads; rotations; stores to caches; attention to few keys, with
/// quants; its projection; again the norm; gate with up; the product of both, with quants; down.
const LAUNCHES_OF_LAYER: usize = 12;

fn cuda(order: Order, launching: Launching) -> Option<(Arc<Emulated>, Cuda)> {
    let device = Arc::new(Emulated::new(order)?);
    let cuda = Cuda::new(Arc::clone(&device) as Arc<dyn Device>, launching);
    Some((device, cuda))
}

/// Evaluates several layers of a model for `n` rows after `n_past` others.
fn layers<B: Backend>(backend: &B, n: usize, n_past: usize) -> Vec<u32> {
    let mut random = Random(7);
    let mut weight =
        |dtype, n_rows, n_cols| load(backend, &weight(&mut random, dtype, n_rows, n_cols).0);
    let [q, k] = [N_HEAD, N_HEAD_KV].map(|n| weight(DType::Q4_K, n * HEAD_DIM, N_EMBD));
    let v = weight(DType::Q6_K, N_HEAD_KV * HEAD_DIM, N_EMBD);
    let [norm, ffn_norm] = [0, 1].map(|_| weight(DType::F32, 1, N_EMBD));
    let [q_norm, k_norm] = [0, 1].map(|_| weight(DType::F32, 1, HEAD_DIM));
    let output = weight(DType::Q8_0, N_EMBD, N_HEAD * HEAD_DIM);
    let [gate, up] = [0, 1].map(|_| weight(DType::Q4_K, N_FF, N_EMBD));
    let down = weight(DType::Q6_K, N_EMBD, N_FF);
    let mut x = upload(backend, &random.row(n * N_EMBD));
    let buffer = |len| backend.buffer(n * len);
    let [mut normed, mut q_raw, mut q_out, mut attended] = [0; 4].map(|_| buffer(N_EMBD));
    let [mut k_raw, mut k_out, mut v_out] = [0; 3].map(|_| buffer(N_HEAD_KV * HEAD_DIM));
    let [mut gated, mut wide] = [0; 2].map(|_| buffer(N_FF));
    let cache = CacheShape {
        n_rows: n_past + n,
        n_head: N_HEAD_KV,
        head_dim: HEAD_DIM,
        element: CacheType::F16,
    };
    let [mut keys, mut values] = [0; 2].map(|_| backend.cache(&cache));
    let past = upload(backend, &random.row(n_past * N_HEAD_KV * HEAD_DIM));
    let past_rows: Vec<usize> = (0..n_past).collect();
    backend.store_rows(&past, &past_rows, &mut keys);
    backend.store_rows(&past, &past_rows, &mut values);
    let rope = Rope {
        layout: RopeLayout::Neox,
        head_dim: HEAD_DIM,
        first: 0,
        inv_freq: (0..HEAD_DIM / 2).map(|i| 0.8f32.powi(i as i32)).collect(),
        magnitude: 1.0,
    };
    let shape = AttentionShape {
        n_head: N_HEAD,
        n_head_kv: N_HEAD_KV,
        head_dim: HEAD_DIM,
        scale: 0.125,
        window: None,
    };
    let positions: Vec<u32> = (0..n as u32).collect();
    let rows: Vec<usize> = (n_past..n_past + n).collect();
    let pasts: Vec<_> = rows.iter().map(|row| 0..row + 1).collect();
    let eps = 1e-6;
    for _ in 0..N_LAYER {
        backend.rms_norm(&x, &norm, eps, n, &mut normed);
        backend.matmul(&q, &normed, n, &mut q_raw);
        backend.matmul(&k, &normed, n, &mut k_raw);
        backend.matmul(&v, &normed, n, &mut v_out);
        backend.rms_norm(&q_raw, &q_norm, eps, n * N_HEAD, &mut q_out);
        backend.rms_norm(&k_raw, &k_norm, eps, n * N_HEAD_KV, &mut k_out);
        backend.rope(&mut q_out, &rope, N_HEAD, &positions);
        backend.rope(&mut k_out, &rope, N_HEAD_KV, &positions);
        backend.store_rows(&k_out, &rows, &mut keys);
        backend.store_rows(&v_out, &rows, &mut values);
        let input = AttentionInput {
            q: &q_out,
            k: &keys,
            v: &values,
            sinks: None,
        };
        backend.attention(&shape, input, &pasts, &mut attended);
        backend.matmul(&output, &attended, n, &mut normed);
        backend.add(&mut x, &normed, n * N_EMBD);
        backend.rms_norm(&x, &ffn_norm, eps, n, &mut normed);
        backend.matmul(&gate, &normed, n, &mut gated);
        backend.matmul(&up, &normed, n, &mut wide);
        backend.silu_mul(&mut gated, &wide, n * N_FF);
        backend.matmul(&down, &gated, n, &mut normed);
        backend.add(&mut x, &normed, n * N_EMBD);
    }
    bits(backend, &x, n * N_EMBD)
}

/// Layers give the same bits for one, some and many activations, with few launches.
#[test]
fn layers_give_the_bits_of_the_cpu() {
    let cpu = Cpu::new(Default::default()).expect("an instruction set");
    for (n, n_past) in [(1, 0), (3, 0), (9, 0), (40, 0), (2, 600)] {
        let expected = layers(&cpu, n, n_past);
        assert!(
            expected
                .iter()
                .all(|&bits| f32::from_bits(bits).is_finite())
        );
        for (order, launching) in [
            (Order::Rising, Launching::Graphs),
            (Order::Falling, Launching::OneByOne),
        ] {
            let Some((device, cuda)) = cuda(order, launching) else {
                return;
            };
            // In the first run the memory for quants grows, which submits the queue.
            let mut before = 0;
            for _ in 0..2 {
                before = device.launched();
                assert!(
                    layers(&cuda, n, n_past) == expected,
                    "{n} rows in {order:?} order"
                );
            }
            assert_eq!(cuda.failure(), None);
            // Attention to many keys has one more launch, and so has storing them; the last sum has no
            // norm after it.
            let n_more = usize::from(n_past > 0);
            let expected = N_LAYER * (LAUNCHES_OF_LAYER + n_more) + n_more + 1;
            assert_eq!(device.launched() - before, expected, "{n} rows");
        }
    }
}

/// A launch must not write new quants while a queued product still reads the old ones.
#[test]
fn quants_in_use_are_kept() {
    fn run<B: Backend>(backend: &B) -> Vec<u32> {
        let mut random = Random(3);
        let mut weight = |dtype, n| load(backend, &weight(&mut random, dtype, n, DIM).0);
        let (w, norm) = (weight(DType::Q8_0, DIM), weight(DType::F32, 1));
        let [x, y] = [0; 2].map(|_| upload(backend, &random.row(DIM)));
        let [mut normed, mut first, mut again, mut last] = [0; 4].map(|_| backend.buffer(DIM));
        backend.matmul(&w, &x, 1, &mut first);
        // Its quants could be written here, but the product after it still reads the old ones.
        backend.rms_norm(&y, &norm, 1e-6, 1, &mut normed);
        backend.matmul(&w, &x, 1, &mut again);
        backend.matmul(&w, &normed, 1, &mut last);
        [again, last]
            .iter()
            .flat_map(|x| bits(backend, x, DIM))
            .collect()
    }
    let cpu = Cpu::new(Default::default()).expect("an instruction set");
    if let Some((_, cuda)) = cuda(Order::Rising, Launching::OneByOne) {
        assert_eq!(run(&cuda), run(&cpu));
    }
}

/// If two norms read the same sum, the second must not be joined with the first, which computes the sum.
#[test]
fn sums_are_complete_before_they_are_read() {
    fn run<B: Backend>(backend: &B) -> Vec<u32> {
        let mut random = Random(4);
        let norm = load(backend, &weight(&mut random, DType::F32, 1, DIM).0);
        let [mut x, y] = [0; 2].map(|_| upload(backend, &random.row(DIM)));
        let [mut first, mut second] = [0; 2].map(|_| backend.buffer(DIM));
        backend.add(&mut x, &y, DIM);
        backend.rms_norm(&x, &norm, 1e-6, 1, &mut first);
        backend.rms_norm(&x, &norm, 1e-6, 1, &mut second);
        [first, second]
            .iter()
            .flat_map(|x| bits(backend, x, DIM))
            .collect()
    }
    let cpu = Cpu::new(Default::default()).expect("an instruction set");
    if let Some((_, cuda)) = cuda(Order::Falling, Launching::OneByOne) {
        assert_eq!(run(&cuda), run(&cpu));
    }
}

/// Rows of a norm that are not whole tiles are quantized separately, even if the total is.
#[test]
fn odd_rows_are_quantized_separately() {
    fn run<B: Backend>(backend: &B) -> Vec<u32> {
        let (mut random, dim, n) = (Random(5), 48, 2);
        let norm = load(backend, &weight(&mut random, DType::F32, 1, dim).0);
        let w = load(backend, &weight(&mut random, DType::Q8_0, DIM, n * dim).0);
        let x = upload(backend, &random.row(n * dim));
        let (mut normed, mut out) = (backend.buffer(n * dim), backend.buffer(DIM));
        backend.rms_norm(&x, &norm, 1e-6, n, &mut normed);
        backend.matmul(&w, &normed, 1, &mut out);
        bits(backend, &out, DIM)
    }
    let cpu = Cpu::new(Default::default()).expect("an instruction set");
    if let Some((_, cuda)) = cuda(Order::Rising, Launching::OneByOne) {
        assert_eq!(run(&cuda), run(&cpu));
        assert_eq!(cuda.failure(), None);
    }
}

/// Elements per row of the buffers that random operations use.
const DIM: usize = 64;
const N_BUFFER: usize = 4;

/// Runs random operations on some buffers; each depends on the results before it.
fn random_operations<B: Backend>(backend: &B, seed: u64, n_operation: usize) -> Vec<u32> {
    let mut random = Random(seed);
    let types = [DType::Q8_0, DType::Q8_0, DType::Q4_0, DType::F16];
    let weights = types.map(|dtype| load(backend, &weight(&mut random, dtype, DIM, DIM).0));
    // Rows of twice the length, half as many.
    let wide = load(backend, &weight(&mut random, DType::Q8_0, DIM, 2 * DIM).0);
    let norms: [WeightData; 2] = [0; 2].map(|_| weight(&mut random, DType::F32, 1, DIM).0);
    let norms = norms.map(|norm| load(backend, &norm));
    let n = 1 + random.below(4);
    let mut buffers = [0; N_BUFFER].map(|_| upload(backend, &random.row(n * DIM)));
    let rope = Rope {
        layout: RopeLayout::Norm,
        head_dim: DIM / 2,
        first: 0,
        inv_freq: vec![1.0, 0.3, 0.1],
        magnitude: 1.0,
    };
    for i in 0..n_operation {
        // Keeps magnitudes bounded.
        if i % 6 == 0 {
            buffers
                .iter_mut()
                .for_each(|x| backend.l2_norm(x, 1e-6, DIM, n));
        }
        let at = random.below(N_BUFFER);
        let other = (at + 1 + random.below(N_BUFFER - 1)) % N_BUFFER;
        let [to, from] = buffers.get_disjoint_mut([at, other]).expect("two buffers");
        // Sometimes only some rows; the others must stay unchanged.
        let rows = 1 + random.below(n);
        match random.below(14) {
            12 if rows.is_multiple_of(2) => backend.matmul(&wide, from, rows / 2, to),
            13 => backend.rms_norm(from, &norms[0], 1e-6, n, to),
            0..5 => backend.matmul(&weights[random.below(4)], from, rows, to),
            5 => backend.add(to, from, rows * DIM),
            6 | 7 => backend.rms_norm(from, &norms[random.below(2)], 1e-6, rows, to),
            8 => backend.silu_mul(to, from, rows * DIM),
            9 => backend.rope(to, &rope, 2, &[3, 1, 4, 1][..rows]),
            10 => backend.copy_rows(from, 0, to, rows - 1, DIM, 1),
            _ => backend.scale(to, 0.5, rows * DIM),
        }
    }
    let all = buffers.iter().map(|x| bits(backend, x, n * DIM));
    all.flatten().collect()
}

#[test]
fn random_operations_give_the_bits_of_the_cpu() {
    let cpu = Cpu::new(Default::default()).expect("an instruction set");
    for seed in 0..200 {
        // The order in which joined launches execute must not matter.
        let (order, launching) = match seed % 2 {
            0 => (Order::Rising, Launching::Graphs),
            _ => (Order::Falling, Launching::OneByOne),
        };
        let Some((_, cuda)) = cuda(order, launching) else {
            return;
        };
        let expected = random_operations(&cpu, seed, 60);
        assert!(
            expected
                .iter()
                .all(|&bits| f32::from_bits(bits).is_finite())
        );
        assert!(
            random_operations(&cuda, seed, 60) == expected,
            "seed {seed}"
        );
        assert_eq!(cuda.failure(), None);
    }
}

/// Joined launches, and launches that do not wait for each other, must be independent on a real device.
#[test]
fn a_cuda_device_joins_operations_without_changing_bits() {
    let Some(cuda) = crate::device() else { return };
    let cpu = Cpu::new(Default::default()).expect("an instruction set");
    for (n, n_past) in [(1, 0), (9, 0), (2, 600)] {
        let found = layers(&cuda, n, n_past);
        assert!(found == layers(&cpu, n, n_past), "{n} rows after {n_past}");
    }
    for seed in 0..20 {
        let found = random_operations(&cuda, seed, 60);
        assert!(found == random_operations(&cpu, seed, 60), "seed {seed}");
    }
    assert_eq!(cuda.failure(), None);
}

fn bits<B: Backend>(backend: &B, x: &B::Buffer, len: usize) -> Vec<u32> {
    let mut elements = vec![0.0; len];
    backend.download(x, 0, &mut elements);
    elements.into_iter().map(f32::to_bits).collect()
}
