//! The list of cases, and the formulas of the operations on rows.

use std::ops::Range;

use kernels::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, CacheType, Columns, CompressionShape,
    DeltaShape, Gating, HeadOrder, IndexerShape, Rope, RopeLayout, Routing, StateSpaceShape,
    StreamShape,
};
use kernels::cuda::Launching;
use kernels::cuda::source::headers;
use kernels::types::{codec, codecs};
use schemas::gguf::DType;

use crate::choose::choose;
use crate::compression::{Sizes, choose_rows, compress};
use crate::data::{Random, dot, download, f64_row, largest, load, pick, upload, weight};
use crate::elementwise::{add_bias, elementwise};
use crate::emulated::Order;
use crate::hyper_connection::hyper_connection;
use crate::moe::{experts, heads, route_to, sigmoid_mul_rows};
use crate::recurrent::{causal_conv, gated_delta_rule, state_space};
use crate::{Case, cuda};

/// Allowed error relative to the terms of a sum, if the kernel only adds and multiplies: some units of
/// 2^-24, as each of 32 lanes rounds some hundred times, up or down.
pub(crate) const SUM_TOLERANCE: f64 = 5e-7;

/// Allowed error with exponentials, sines, or states that feed back into themselves.
pub(crate) const FUNCTION_TOLERANCE: f64 = 2e-6;

/// Allowed error of operations that only move elements.
pub(crate) const EXACT: f64 = 0.0;

pub(crate) fn cases<B: Backend + 'static>() -> Vec<Case<B>> {
    cases_of(codecs().map(|codec| codec.dtype()))
}

/// The cases with weights of types that devices can load.
pub(crate) fn device_cases<B: Backend + 'static>() -> Vec<Case<B>> {
    cases_of(codecs().map(|codec| codec.dtype()).filter(|dtype| {
        let header = format!("{dtype}.cuh").to_lowercase();
        headers().any(|of_type| of_type.name == header)
    }))
}

fn cases_of<B: Backend + 'static>(types: impl Iterator<Item = DType>) -> Vec<Case<B>> {
    let mut random = Random(1);
    let mut cases = Vec::new();
    for dtype in types {
        let block = dtype.layout().expect("a type with a codec").block_len as usize;
        // Odd shapes, one of a single block, and one with enough work for all threads.
        let columns = [1, 31, 33, 257].map(|n_in: usize| n_in.next_multiple_of(block));
        for (n_in, (n, n_out)) in columns.into_iter().zip([(1, 1), (3, 5), (2, 1), (7, 33)]) {
            cases.push(matmul(&mut random, dtype, n, n_in, n_out));
        }
        // Widths of drafts, which have their own products.
        for n in [4, 5, 6, 8, 12, 20] {
            cases.push(matmul(&mut random, dtype, n, 2 * block, 17));
        }
        cases.push(matmul(&mut random, dtype, 37, 512, 48));
        // More columns than any kernel holds at once, for one activation row, some, and many.
        for (n, n_in, n_out) in [(1, 7265, 33), (9, 4001, 35), (34, 1057, 17)] {
            let n_in = usize::next_multiple_of(n_in, block);
            cases.push(matmul(&mut random, dtype, n, n_in, n_out));
        }
        // More outputs than a square tile, and a depth that is not a multiple of the step where the type
        // allows it.
        cases.push(matmul(
            &mut random,
            dtype,
            70,
            96usize.next_multiple_of(block),
            67,
        ));
        cases.push(embed(
            &mut random,
            dtype,
            40,
            67usize.next_multiple_of(block),
        ));
    }
    // More activations than fit the L2 cache.
    cases.push(matmul(&mut random, DType::F32, 100, 1 << 13, 3));
    // A longer row than CUDA kernels hold at once.
    cases.push(rms_norm(&mut random, 2, 1, 8229));
    cases.push(layer_norm(&mut random, 2, 8229));
    cases.push(l2_norm(&mut random, 2, 8229));
    for (n, dim) in [(1, 1), (3, 31), (4, 257), (70, 1024)] {
        cases.push(rms_norm(&mut random, n, 1, dim));
        cases.push(rms_norm(&mut random, n, 3, dim));
        cases.push(layer_norm(&mut random, n, dim));
        cases.push(l2_norm(&mut random, n, dim));
        cases.extend(elementwise(&mut random, n, dim));
        cases.push(add_bias(&mut random, n, dim));
        cases.push(gather_rows(&mut random, n, dim));
        cases.push(copy_rows(&mut random, n, dim));
        cases.push(copy_cached(&mut random, n, dim));
        cases.push(copy_columns(&mut random, n, dim));
        cases.push(sigmoid_mul_rows(&mut random, n, dim));
        cases.push(heads(&mut random, n, 1 + dim % 5));
        cases.push(choose(&mut random, n, dim, n % 2 == 0));
    }
    for (gating, n_expert, n_used, n_group, n_group_used, normalised, with_bias) in [
        (Gating::Softmax, 1, 1, 1, 1, true, false),
        (Gating::Softmax, 7, 3, 1, 1, true, false),
        (Gating::Softmax, 5, 5, 0, 0, false, true),
        (Gating::Sigmoid, 16, 4, 4, 2, true, true),
        (Gating::SqrtSoftplus, 16, 4, 1, 1, true, true),
    ] {
        let routing = Routing {
            n_expert,
            n_used,
            n_group,
            n_group_used,
            gating,
            normalised,
            scale: 1.5,
        };
        // The last has so many rows that all and those of one expert are multiplied in different ways.
        for (dtype, n) in [
            (DType::F32, 1),
            (DType::F32, 9),
            (DType::BF16, 5),
            (DType::Q8_0, 40),
        ] {
            cases.push(experts(&mut random, dtype, routing, n, with_bias));
        }
        cases.push(route_to(&mut random, routing, 7));
    }
    for layout in [RopeLayout::Norm, RopeLayout::Neox] {
        for (n, n_head, head_dim, first, n_rot) in [
            (1, 1, 2, 0, 2),
            (5, 3, 64, 0, 64),
            (9, 4, 80, 0, 20),
            (7, 2, 80, 60, 20),
            (4, 3, 67, 5, 32),
        ] {
            let rotated = first..first + n_rot;
            cases.push(rope(&mut random, layout, n, n_head, head_dim, rotated));
        }
    }
    for (n, n_sequence, len, n_head, n_head_kv, head_dim, window) in [
        (1, 1, 1, 1, 1, 8, None),
        (4, 4, 70, 6, 2, 33, None),
        (9, 3, 130, 8, 8, 64, None),
        (21, 2, 300, 4, 1, 128, None),
        (5, 1, 600, 3, 1, 96, None),
        (6, 2, 560, 14, 2, 32, Some(530)),
        (9, 3, 130, 4, 2, 33, Some(1)),
        (9, 3, 130, 4, 2, 64, Some(40)),
        (21, 2, 300, 4, 1, 32, Some(64)),
        (5, 1, 60, 2, 1, 16, Some(100)),
    ] {
        let scale = (head_dim as f32).sqrt().recip();
        let shape = AttentionShape {
            n_head,
            n_head_kv,
            head_dim,
            scale,
            window,
        };
        for element in CacheType::all() {
            if !head_dim.is_multiple_of(element.block_len()) {
                continue;
            }
            for sinks in [false, true] {
                let case = attention(&mut random, shape, element, n, n_sequence, len, sinks);
                cases.push(case);
            }
        }
    }
    for (n, ratio, dim, overlaps) in [(1, 1, 1, false), (3, 4, 33, true), (4, 128, 64, false)] {
        let shape = CompressionShape {
            ratio,
            dim,
            overlaps,
        };
        cases.push(compress(&mut random, n, shape));
    }
    for (n, n_first, n_visible, n_head, head_dim, n_chosen) in [
        (1, 1, 1, 1, 32, 1),
        (3, 0, 40, 2, 33, 7),
        (5, 9, 700, 4, 64, 50),
        (3, 2, 30, 3, 64, 64),
    ] {
        let (sizes, shape) = (
            Sizes {
                n,
                n_first,
                n_visible,
            },
            IndexerShape {
                n_head,
                head_dim,
                n_chosen,
            },
        );
        let fits = |t: &CacheType| head_dim.is_multiple_of(t.block_len());
        for element in CacheType::all().filter(fits) {
            cases.push(choose_rows(&mut random, sizes, shape, element));
        }
    }
    for (n, n_stream, dim, n_iteration) in [(1, 1, 1, 1), (3, 4, 33, 20), (5, 2, 257, 3)] {
        for n_weight in [n_stream, StreamShape::connection(n_stream)] {
            let shape = StreamShape {
                n_stream,
                dim,
                n_weight,
                eps: 1e-6,
                n_iteration,
            };
            cases.push(hyper_connection(&mut random, n, shape));
        }
    }
    for (n, len, n_channel, kernel) in [(1, 1, 1, 1), (3, 5, 33, 4), (4, 9, 257, 3)] {
        for with_bias in [false, true] {
            cases.push(causal_conv(
                &mut random,
                n,
                len,
                [n_channel, kernel],
                with_bias,
            ));
        }
    }
    for (n, len, n_head, head_dim, n_group, state_dim) in [
        (1, 1, 1, 1, 1, 1),
        (3, 6, 4, 33, 2, 16),
        (2, 9, 6, 100, 3, 7),
        (4, 4, 2, 64, 1, 128),
    ] {
        let shape = StateSpaceShape {
            n_head,
            head_dim,
            n_group,
            state_dim,
        };
        cases.push(state_space(&mut random, n, len, shape));
    }
    for (n, len, n_head_k, n_head_v, head_dim_k, head_dim_v, order) in [
        (1, 1, 1, 1, 1, 1, HeadOrder::Tiled),
        (3, 6, 2, 4, 16, 33, HeadOrder::Tiled),
        (3, 6, 2, 6, 17, 65, HeadOrder::Grouped),
        (4, 20, 1, 2, 128, 128, HeadOrder::Tiled),
    ] {
        let shape = DeltaShape {
            n_head_k,
            n_head_v,
            head_dim_k,
            head_dim_v,
            order,
        };
        cases.push(gated_delta_rule(&mut random, n, len, shape));
    }
    // Gated delta rule: as many value heads as key heads, or twice as many.
    for head_dim in [16, 32, 64, 128] {
        for (n_head_v, order) in [
            (2, HeadOrder::Tiled),
            (4, HeadOrder::Tiled),
            (4, HeadOrder::Grouped),
        ] {
            for (n, len) in [(1, 2), (1, 4), (2, 2), (2, 4)] {
                let shape = DeltaShape {
                    n_head_k: 2,
                    n_head_v,
                    head_dim_k: head_dim,
                    head_dim_v: head_dim,
                    order,
                };
                cases.push(gated_delta_rule(&mut random, n, len, shape));
            }
        }
    }
    cases
}

fn matmul<B: Backend + 'static>(
    random: &mut Random,
    dtype: DType,
    n: usize,
    n_in: usize,
    n_out: usize,
) -> Case<B> {
    let (data, w) = weight(random, dtype, n_out, n_in);
    let x = random.rows(n, n_in);
    let seen: Vec<Vec<f64>> = x.iter().map(|x| activations(dtype, x)).collect();
    let product = |term: fn(f64) -> f64| -> Vec<Vec<f64>> {
        let dot = |w: &[f32], x: &[f64]| {
            let terms = w.iter().zip(x).map(|(&w, &x)| term(f64::from(w) * x));
            terms.sum()
        };
        seen.iter()
            .map(|x| w.chunks(n_in).map(|w| dot(w, x)).collect())
            .collect()
    };
    let expected = product(|term| term);
    // Terms may cancel; rounding errors are relative to their magnitudes.
    let tolerance = SUM_TOLERANCE * largest(&product(f64::abs)) / largest(&expected);
    Case {
        name: format!("matmul {dtype} {n} x {n_in} x {n_out}"),
        tolerance,
        expected,
        run: Box::new(move |backend, items| {
            let w = load(backend, &data);
            let x = upload(backend, &pick(&x, items));
            let mut out = backend.buffer(items.len() * n_out);
            backend.matmul(&w, &x, items.len(), &mut out);
            download(backend, &out, items.len(), n_out)
        }),
    }
}

/// Returns a row as products with weights of a type read it.
pub(crate) fn activations(dtype: DType, x: &[f32]) -> Vec<f64> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => f64_row(x),
        _ => codes_row(x),
    }
}

/// Rounds a row as products with quantized weights do: each 32 elements to 127 steps of the largest.
fn codes_row(x: &[f32]) -> Vec<f64> {
    let block = |x: &[f32]| -> Vec<f64> {
        let largest = x.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
        let inverse = 127.0 / largest;
        let scale = f64::from(largest / 127.0);
        x.iter()
            .map(|x| f64::from((x * inverse).round_ties_even()) * scale)
            .collect()
    };
    x.chunks(32).flat_map(block).collect()
}

fn embed<B: Backend + 'static>(
    random: &mut Random,
    dtype: DType,
    n_vocab: usize,
    n_embd: usize,
) -> Case<B> {
    let (data, table) = weight(random, dtype, n_vocab, n_embd);
    let tokens: Vec<u32> = (0..9).map(|_| random.below(n_vocab) as u32).collect();
    let expected = tokens
        .iter()
        .map(|&t| f64_row(&table[t as usize * n_embd..][..n_embd]))
        .collect();
    Case {
        name: format!("embed {dtype}"),
        tolerance: EXACT,
        expected,
        run: Box::new(move |backend, items| {
            let table = load(backend, &data);
            let tokens: Vec<u32> = items.iter().map(|&i| tokens[i]).collect();
            let mut out = backend.buffer(tokens.len() * n_embd);
            backend.embed(&table, &tokens, &mut out);
            download(backend, &out, tokens.len(), n_embd)
        }),
    }
}

/// Rows of `n_weight` parts, each with its own row of the weight.
fn rms_norm<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    n_weight: usize,
    dim: usize,
) -> Case<B> {
    const EPS: f32 = 1e-6;
    let (data, w) = weight(random, DType::F32, n_weight, dim);
    let width = n_weight * dim;
    let x = random.rows(n, width);
    let part = |(x, w): (&[f32], &[f32])| -> Vec<f64> {
        let x = f64_row(x);
        let scale = (dot(&x, &x) / dim as f64 + f64::from(EPS)).sqrt().recip();
        let pairs = x.iter().zip(w);
        pairs.map(|(x, w)| x * scale * f64::from(*w)).collect()
    };
    let row = |x: &Vec<f32>| {
        let parts = x.chunks_exact(dim).zip(w.chunks_exact(dim));
        parts.flat_map(part).collect()
    };
    Case {
        name: format!("rms_norm {n} x {n_weight} x {dim}"),
        tolerance: SUM_TOLERANCE,
        expected: x.iter().map(row).collect(),
        run: Box::new(move |backend, items| {
            let w = load(backend, &data);
            let x = upload(backend, &pick(&x, items));
            let mut out = backend.buffer(items.len() * width);
            backend.rms_norm(&x, &w, EPS, items.len() * n_weight, &mut out);
            download(backend, &out, items.len(), width)
        }),
    }
}

fn layer_norm<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    const EPS: f32 = 1e-5;
    let (data, w) = weight(random, DType::F32, 1, dim);
    let x = random.rows(n, dim);
    let row = |x: &Vec<f32>| {
        let x = f64_row(x);
        let mean = x.iter().sum::<f64>() / dim as f64;
        let x: Vec<f64> = x.iter().map(|x| x - mean).collect();
        let scale = (dot(&x, &x) / dim as f64 + f64::from(EPS)).sqrt().recip();
        let pairs = x.iter().zip(&w);
        pairs.map(|(x, w)| x * scale * f64::from(*w)).collect()
    };
    Case {
        name: format!("layer_norm {n} x {dim}"),
        tolerance: SUM_TOLERANCE,
        expected: x.iter().map(row).collect(),
        run: Box::new(move |backend, items| {
            let w = load(backend, &data);
            let x = upload(backend, &pick(&x, items));
            let mut out = backend.buffer(items.len() * dim);
            backend.layer_norm(&x, &w, EPS, items.len(), &mut out);
            download(backend, &out, items.len(), dim)
        }),
    }
}

fn l2_norm<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    const EPS: f32 = 1e-6;
    let x = random.rows(n, dim);
    let expected = x
        .iter()
        .map(|x| {
            let x = f64_row(x);
            let scale = (dot(&x, &x) + f64::from(EPS)).sqrt().recip();
            x.iter().map(|x| x * scale).collect()
        })
        .collect();
    Case {
        name: format!("l2_norm {n} x {dim}"),
        tolerance: SUM_TOLERANCE,
        expected,
        run: Box::new(move |backend, items| {
            let mut x = upload(backend, &pick(&x, items));
            backend.l2_norm(&mut x, EPS, dim, items.len());
            download(backend, &x, items.len(), dim)
        }),
    }
}

fn rope<B: Backend + 'static>(
    random: &mut Random,
    layout: RopeLayout,
    n: usize,
    n_head: usize,
    head_dim: usize,
    rotated: Range<usize>,
) -> Case<B> {
    let n_rot = rotated.len();
    let inv_freq: Vec<f32> = (0..n_rot / 2)
        .map(|i| 1e6f64.powf(-2.0 * i as f64 / n_rot as f64) as f32)
        .collect();
    let positions: Vec<u32> = (0..n)
        .map(|i| if i == 0 { 0 } else { random.below(2000) as u32 })
        .collect();
    // As with scaled positions; exact in both precisions.
    let magnitude = 1.25;
    let x = random.rows(n, n_head * head_dim);
    let expected = x
        .iter()
        .zip(&positions)
        .map(|(x, &position)| {
            let mut x = f64_row(x);
            for head in x.chunks_mut(head_dim) {
                let head = &mut head[rotated.clone()];
                for (i, &inv_freq) in inv_freq.iter().enumerate() {
                    // The angle is an `f32` product, as in the reference implementations.
                    let (sin, cos) = f64::from(position as f32 * inv_freq).sin_cos();
                    let (sin, cos) = (magnitude * sin, magnitude * cos);
                    let (a, b) = match layout {
                        RopeLayout::Norm => (2 * i, 2 * i + 1),
                        RopeLayout::Neox => (i, i + n_rot / 2),
                    };
                    (head[a], head[b]) =
                        (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                }
            }
            x
        })
        .collect();
    let rope = Rope {
        layout,
        head_dim,
        first: rotated.start,
        inv_freq,
        magnitude: magnitude as f32,
    };
    Case {
        name: format!("rope {layout:?} {n} x {n_head} x {head_dim}, {rotated:?} rotated"),
        tolerance: FUNCTION_TOLERANCE,
        expected,
        run: Box::new(move |backend, items| {
            let mut x = upload(backend, &pick(&x, items));
            let positions: Vec<u32> = items.iter().map(|&i| positions[i]).collect();
            backend.rope(&mut x, &rope, n_head, &positions);
            download(backend, &x, items.len(), n_head * head_dim)
        }),
    }
}

/// Gathers every third row of a matrix, in reverse order.
fn gather_rows<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    let x = random.rows(n, dim);
    Case {
        name: format!("gather_rows {n} x {dim}"),
        tolerance: EXACT,
        expected: x.iter().map(|x| f64_row(x)).collect(),
        run: Box::new(move |backend, items| {
            let n = items.len();
            let rows: Vec<usize> = (0..n).map(|i| 3 * (n - i) - 1).collect();
            let mut matrix = backend.buffer(3 * n * dim);
            for (&item, row) in items.iter().zip(&rows) {
                backend.upload(&x[item], &mut matrix, row * dim);
            }
            let mut out = backend.buffer(n * dim);
            backend.gather_rows(&matrix, dim, &rows, &mut out);
            download(backend, &out, n, dim)
        }),
    }
}

/// Copies rows past the middle of a larger matrix, to its start, and to another matrix.
fn copy_rows<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    let x = random.rows(n, dim);
    Case {
        name: format!("copy_rows {n} x {dim}"),
        tolerance: EXACT,
        expected: x.iter().map(|x| f64_row(x)).collect(),
        run: Box::new(move |backend, items| {
            let n = items.len();
            let x = upload(backend, &pick(&x, items));
            let mut middle = backend.buffer((2 * n + 1) * dim);
            backend.copy_rows(&x, 0, &mut middle, n + 1, dim, n);
            backend.copy_within(&mut middle, (n + 1) * dim, 0, n * dim);
            let mut out = backend.buffer(n * dim);
            backend.copy_rows(&middle, 0, &mut out, 0, dim, n);
            download(backend, &out, n, dim)
        }),
    }
}

/// Stores values, copies them within the cache, and reads them by attention to a single key.
fn copy_cached<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    const N_HEAD: usize = 2;
    let x = random.rows(n, N_HEAD * dim);
    Case {
        name: format!("copy_cached {n} x {dim}"),
        tolerance: EXACT,
        expected: x.iter().map(|x| f64_row(x)).collect(),
        run: Box::new(move |backend, items| {
            let n = items.len();
            let x = upload(backend, &pick(&x, items));
            let mut cache = backend.cache(&CacheShape {
                n_rows: 2 * n + 1,
                n_head: N_HEAD,
                head_dim: dim,
                element: CacheType::F32,
            });
            let rows: Vec<usize> = (0..n).collect();
            backend.store_rows(&x, &rows, &mut cache);
            backend.copy_cached(&mut cache, 0, n + 1, n);
            let shape = AttentionShape {
                n_head: N_HEAD,
                n_head_kv: N_HEAD,
                head_dim: dim,
                scale: 1.0,
                window: None,
            };
            let input = AttentionInput {
                q: &x,
                k: &cache,
                v: &cache,
                sinks: None,
            };
            let keys: Vec<_> = (n + 1..2 * n + 1).map(|row| row..row + 1).collect();
            let mut out = backend.buffer(n * N_HEAD * dim);
            backend.attention(&shape, input, &keys, &mut out);
            download(backend, &out, n, N_HEAD * dim)
        }),
    }
}

/// Swaps the first and the second part of each row.
fn copy_columns<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    let x = random.rows(n, dim);
    let cut = dim / 3;
    let swap = |x: &Vec<f32>| f64_row(&[&x[cut..], &x[..cut]].concat());
    Case {
        name: format!("copy_columns {n} x {dim}"),
        tolerance: EXACT,
        expected: x.iter().map(swap).collect(),
        run: Box::new(move |backend, items| {
            let n = items.len();
            let x = upload(backend, &pick(&x, items));
            let mut out = backend.buffer(n * dim);
            let columns = |offset| Columns {
                stride: dim,
                offset,
            };
            backend.copy_columns(&x, columns(cut), &mut out, columns(0), dim - cut, n);
            backend.copy_columns(&x, columns(0), &mut out, columns(dim - cut), cut, n);
            download(backend, &out, n, dim)
        }),
    }
}

/// Attention of queries at random positions of a few sequences of `len` tokens; consecutive queries
/// alternate between sequences.
fn attention<B: Backend + 'static>(
    random: &mut Random,
    shape: AttentionShape,
    element: CacheType,
    n: usize,
    n_sequence: usize,
    len: usize,
    with_sinks: bool,
) -> Case<B> {
    let AttentionShape {
        n_head,
        n_head_kv,
        head_dim,
        scale,
        window,
    } = shape;
    let dim_kv = n_head_kv * head_dim;
    let q = random.rows(n, n_head * head_dim);
    // Numbers that a cache of the type represents exactly.
    let codec = codec(element.dtype()).expect("types of caches have codecs");
    let mut rows = || -> Vec<Vec<f32>> {
        let round = |mut row: Vec<f32>| {
            let mut bytes = vec![0; element.dtype().row_bytes(dim_kv as u64).unwrap() as usize];
            codec.quantize(&row, None, &mut bytes);
            codec.dequantize(&bytes, &mut row);
            row
        };
        random.rows(len, dim_kv).into_iter().map(round).collect()
    };
    let [k, v] = [(); 2].map(|()| -> Vec<_> { (0..n_sequence).map(|_| rows()).collect() });
    let n_key: Vec<usize> = (0..n)
        .map(|i| if i == 0 { len } else { 1 + random.below(len) })
        .collect();
    let (sink_data, sinks) = weight(random, DType::F32, 1, n_head);
    let formula = |i: usize| {
        let seen = n_key[i].saturating_sub(window.unwrap_or(len))..n_key[i];
        let (k, v) = (&k[i % n_sequence][seen.clone()], &v[i % n_sequence][seen]);
        let mut out = Vec::new();
        for (h, q) in q[i].chunks(head_dim).enumerate() {
            let at = h / (n_head / n_head_kv) * head_dim;
            let head = |row: &[f32]| f64_row(&row[at..at + head_dim]);
            let weight = |k: &Vec<f32>| (dot(&f64_row(q), &head(k)) * f64::from(scale)).exp();
            let weights: Vec<f64> = k.iter().map(weight).collect();
            let sink = f64::from(sinks[h]).exp();
            let sum: f64 = weights.iter().sum::<f64>() + if with_sinks { sink } else { 0.0 };
            for d in 0..head_dim {
                let terms = v
                    .iter()
                    .zip(&weights)
                    .map(|(v, w)| f64::from(v[at + d]) * w);
                out.push(terms.sum::<f64>() / sum);
            }
        }
        out
    };
    Case {
        name: format!(
            "attention {n} of {n_sequence} x {len}, {shape:?}, {element}, sinks {with_sinks}"
        ),
        tolerance: FUNCTION_TOLERANCE,
        expected: (0..n).map(formula).collect(),
        run: Box::new(move |backend, items| {
            // Each sequence has room at a place that depends on the batch, with unwritten rows between the
            // sequences and after the keys of the longest query.
            let room = len + 1 + items.len() % 5;
            let start = |item: usize| 2 + (item + items.len()) % n_sequence * room;
            let rows = 2 + n_sequence * room;
            let keys: Vec<_> = items
                .iter()
                .map(|&i| start(i)..start(i) + n_key[i])
                .collect();
            let [k, v] = [&k, &v].map(|side| {
                let mut cache = backend.cache(&CacheShape {
                    n_rows: rows,
                    n_head: n_head_kv,
                    head_dim,
                    element,
                });
                for &item in items {
                    let written = &side[item % n_sequence];
                    let longest = items.iter().filter(|&&i| start(i) == start(item));
                    let longest = longest.map(|&i| n_key[i]).max().unwrap_or(0);
                    let written = upload(backend, &written[..longest].concat());
                    let rows: Vec<usize> = (start(item)..start(item) + longest).collect();
                    backend.store_rows(&written, &rows, &mut cache);
                }
                cache
            });
            let q = upload(backend, &pick(&q, items));
            let mut out = backend.buffer(items.len() * n_head * head_dim);
            let sinks = with_sinks.then(|| load(backend, &sink_data));
            let input = AttentionInput {
                q: &q,
                k: &k,
                v: &v,
                sinks: sinks.as_ref(),
            };
            backend.attention(&shape, input, &keys, &mut out);
            download(backend, &out, items.len(), n_head * head_dim)
        }),
    }
}

/// Shapes beyond the limits of the CUDA kernels are a failure and give no result.
#[test]
fn heads_that_are_too_large_for_cuda_are_refused() {
    let shape = AttentionShape {
        n_head: 1,
        n_head_kv: 1,
        head_dim: 1056,
        scale: 1.0,
        window: None,
    };
    let case = attention(&mut Random(1), shape, CacheType::F16, 2, 1, 5, false);
    let Some(cuda) = cuda(Order::Rising, Launching::OneByOne) else {
        return;
    };
    let out = (case.run)(&cuda, &[0, 1]);
    assert!(out.iter().flatten().all(|x| x.is_nan()));
    let failure = cuda.failure().expect("a failure").to_string();
    let expected =
        "at most 1024 elements of a head, and this model has 1056; run with --device cpu";
    assert!(failure.contains(expected), "{failure}");
}
