//! Every operation, on every implementation this machine can run: against its formula in `f64`,
//! and against itself, bit for bit, in other batches, with other threads and instruction sets.

use std::sync::Arc;

use kernels::backend::{
    AttentionShape, Backend, Columns, DeltaInput, DeltaShape, Rope, RopeLayout, Step, WeightData,
};
use kernels::cpu::{Cpu, CpuConfig};
use kernels::quant::{quant_type, quant_types};
use schemas::gguf::DType;

/// Error allowed relative to the terms of a sum where the kernel only adds and multiplies: some
/// units of 2^-24, as each of 32 lanes rounds some hundred times, up or down.
const SUM_TOLERANCE: f64 = 5e-7;

/// The same where exponentials, sines or states that feed back into themselves take part.
const FUNCTION_TOLERANCE: f64 = 2e-6;

/// The same where elements are only moved.
const EXACT: f64 = 0.0;

/// An operation on a batch of items: rows, or for the recurrent operations whole sequences.
struct Case<B> {
    name: String,
    /// Error allowed relative to the largest expected element.
    tolerance: f64,
    /// Per item, what the formula says.
    expected: Vec<Vec<f64>>,
    /// Computes the chosen items, in that order, in one batch.
    run: Run<B>,
}

type Run<B> = Box<dyn Fn(&B, &[usize]) -> Vec<Vec<f32>>>;

#[test]
fn operations_follow_their_formulas() {
    for backend in backends() {
        let mut failures = Vec::new();
        let cases = cases();
        for case in &cases {
            let all: Vec<usize> = (0..case.expected.len()).collect();
            let got = (case.run)(&backend, &all);
            for (item, (got, want)) in got.iter().zip(&case.expected).enumerate() {
                assert_eq!(got.len(), want.len(), "{}", case.name);
                let worst = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).abs());
                let worst = worst.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a });
                let relative = worst / largest(&case.expected);
                if relative.is_nan() || relative > case.tolerance {
                    failures.push(format!("{}, item {item}: off by {relative:.1e}", case.name));
                    break;
                }
            }
        }
        assert!(
            failures.is_empty(),
            "{}: {} of {} cases:\n{}",
            backend.name(),
            failures.len(),
            cases.len(),
            failures.join("\n")
        );
    }
}

#[test]
fn results_do_not_depend_on_batch_threads_or_instruction_set() {
    let backends = backends();
    for case in cases() {
        if let Some(found) = find_dependence(&case, &backends) {
            panic!("{found}");
        }
    }
}

#[test]
fn a_kernel_that_depends_on_its_batch_is_found() {
    let mut random = Random(5);
    let x = random.rows(6, 200);
    let case = Case {
        name: "sum from a place that the batch decides".into(),
        tolerance: SUM_TOLERANCE,
        expected: x.iter().map(|x| vec![f64_row(x).iter().sum()]).collect(),
        run: Box::new(move |_: &Cpu, items| {
            let sum = |x: &[f32]| {
                x.iter()
                    .cycle()
                    .skip(items.len())
                    .take(x.len())
                    .sum::<f32>()
            };
            items.iter().map(|&i| vec![sum(&x[i])]).collect()
        }),
    };
    assert!(find_dependence(&case, &backends()).is_some());
}

/// Computes items alone and in batches of random composition; the first difference in words.
fn find_dependence<B: Backend>(case: &Case<B>, backends: &[B]) -> Option<String> {
    let n = case.expected.len();
    let all: Vec<usize> = (0..n).collect();
    let together = bits((case.run)(&backends[0], &all));
    let mut random = Random(11);
    for (i, backend) in backends.iter().enumerate() {
        let mut batches = vec![all.clone()];
        batches.extend(all.iter().map(|&item| vec![item]));
        batches.extend((0..4).map(|_| {
            let len = 1 + random.below(n);
            (0..len).map(|_| random.below(n)).collect()
        }));
        for batch in batches {
            for (got, &item) in bits((case.run)(backend, &batch)).iter().zip(&batch) {
                if *got != together[item] {
                    let (name, case) = (backend.name(), &case.name);
                    return Some(format!(
                        "{case}: item {item} changes on backend {i} ({name}) in batch {batch:?}"
                    ));
                }
            }
        }
    }
    None
}

fn bits(rows: Vec<Vec<f32>>) -> Vec<Vec<u32>> {
    rows.into_iter()
        .map(|row| row.into_iter().map(f32::to_bits).collect())
        .collect()
}

/// Every instruction set with one, two and three threads.
fn backends() -> Vec<Cpu> {
    let mut backends = Vec::new();
    for isa in Cpu::available() {
        for threads in 1..=3 {
            let config = CpuConfig {
                threads,
                isa: Some(isa),
            };
            backends.push(Cpu::new(config).expect("an available instruction set"));
        }
    }
    backends
}

fn cases<B: Backend + 'static>() -> Vec<Case<B>> {
    let mut random = Random(1);
    let mut cases = Vec::new();
    for dtype in quant_types().map(|quant_type| quant_type.dtype()) {
        let block = dtype.layout().expect("a type with a codec").block_len as usize;
        // Odd shapes, one of one block, and one with enough work for all threads.
        let columns = [1, 31, 33, 257].map(|n_in: usize| n_in.next_multiple_of(block));
        for (n_in, (n, n_out)) in columns.into_iter().zip([(1, 1), (3, 5), (2, 1), (7, 33)]) {
            cases.push(matmul(&mut random, dtype, n, n_in, n_out));
        }
        cases.push(matmul(&mut random, dtype, 37, 512, 48));
        cases.push(embed(
            &mut random,
            dtype,
            40,
            67usize.next_multiple_of(block),
        ));
    }
    for (n, dim) in [(1, 1), (3, 31), (4, 257), (70, 1024)] {
        cases.push(rms_norm(&mut random, n, dim));
        cases.push(l2_norm(&mut random, n, dim));
        cases.extend(elementwise(&mut random, n, dim));
        cases.push(scatter_gather(&mut random, n, dim));
        cases.push(copy_columns(&mut random, n, dim));
    }
    for layout in [RopeLayout::Norm, RopeLayout::Neox] {
        for (n, n_head, head_dim, n_rot) in [(1, 1, 2, 2), (5, 3, 64, 64), (9, 4, 80, 20)] {
            cases.push(rope(&mut random, layout, n, n_head, head_dim, n_rot));
        }
    }
    for (n, n_head, n_head_kv, head_dim, max_past) in [
        (1, 1, 1, 8, 1),
        (4, 6, 2, 33, 70),
        (9, 8, 8, 64, 130),
        (6, 4, 1, 128, 500),
    ] {
        cases.push(attention(
            &mut random,
            n,
            n_head,
            n_head_kv,
            head_dim,
            max_past,
        ));
    }
    for (n, len, n_channel, kernel) in [(1, 1, 1, 1), (3, 5, 33, 4), (4, 9, 257, 3)] {
        cases.push(causal_conv(&mut random, n, len, n_channel, kernel));
    }
    for (n, len, n_head_k, n_head_v, head_dim_k, head_dim_v) in [
        (1, 1, 1, 1, 1, 1),
        (3, 6, 2, 4, 16, 33),
        (4, 20, 1, 2, 128, 128),
    ] {
        let shape = DeltaShape {
            n_head_k,
            n_head_v,
            head_dim_k,
            head_dim_v,
        };
        cases.push(gated_delta_rule(&mut random, n, len, shape));
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
    let product = |term: fn(f64) -> f64| -> Vec<Vec<f64>> {
        let dot = |w: &[f32], x: &[f32]| {
            let terms = w
                .iter()
                .zip(x)
                .map(|(&w, &x)| term(f64::from(w) * f64::from(x)));
            terms.sum()
        };
        x.iter()
            .map(|x| w.chunks(n_in).map(|w| dot(w, x)).collect())
            .collect()
    };
    let expected = product(|term| term);
    // Terms may cancel; what rounding errors are relative to does not.
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

fn rms_norm<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    const EPS: f32 = 1e-6;
    let (data, w) = weight(random, DType::F32, 1, dim);
    let x = random.rows(n, dim);
    let expected = x
        .iter()
        .map(|x| {
            let x = f64_row(x);
            let scale = (dot(&x, &x) / dim as f64 + f64::from(EPS)).sqrt().recip();
            x.iter()
                .zip(&w)
                .map(|(x, w)| x * scale * f64::from(*w))
                .collect()
        })
        .collect();
    Case {
        name: format!("rms_norm {n} x {dim}"),
        tolerance: SUM_TOLERANCE,
        expected,
        run: Box::new(move |backend, items| {
            let w = load(backend, &data);
            let x = upload(backend, &pick(&x, items));
            let mut out = backend.buffer(items.len() * dim);
            backend.rms_norm(&x, &w, EPS, items.len(), &mut out);
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

fn elementwise<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Vec<Case<B>> {
    type Formula = fn(f64, f64) -> f64;
    type Op<B> = fn(&B, &mut <B as Backend>::Buffer, &<B as Backend>::Buffer, usize);
    let mut case = |name: &str, op: Op<B>, formula: Formula| {
        let (x, y) = (random.rows(n, dim), random.rows(n, dim));
        let formula = |(x, y): (&f32, &f32)| formula(f64::from(*x), f64::from(*y));
        Case {
            name: format!("{name} {n} x {dim}"),
            tolerance: FUNCTION_TOLERANCE,
            expected: x
                .iter()
                .zip(&y)
                .map(|(x, y)| x.iter().zip(y).map(formula).collect())
                .collect(),
            run: Box::new(move |backend: &B, items: &[usize]| {
                let mut left = upload(backend, &pick(&x, items));
                let right = upload(backend, &pick(&y, items));
                op(backend, &mut left, &right, items.len() * dim);
                download(backend, &left, items.len(), dim)
            }) as Run<B>,
        }
    };
    vec![
        case("add", B::add, |x, y| x + y),
        case("silu_mul", B::silu_mul, |x, y| x / (1.0 + (-x).exp()) * y),
        case("sigmoid_mul", B::sigmoid_mul, |x, y| x / (1.0 + (-y).exp())),
    ]
}

fn rope<B: Backend + 'static>(
    random: &mut Random,
    layout: RopeLayout,
    n: usize,
    n_head: usize,
    head_dim: usize,
    n_rot: usize,
) -> Case<B> {
    let inv_freq: Vec<f32> = (0..n_rot / 2)
        .map(|i| 1e6f64.powf(-2.0 * i as f64 / n_rot as f64) as f32)
        .collect();
    let positions: Vec<u32> = (0..n)
        .map(|i| if i == 0 { 0 } else { random.below(2000) as u32 })
        .collect();
    let x = random.rows(n, n_head * head_dim);
    let expected = x
        .iter()
        .zip(&positions)
        .map(|(x, &position)| {
            let mut x = f64_row(x);
            for head in x.chunks_mut(head_dim) {
                for (i, &inv_freq) in inv_freq.iter().enumerate() {
                    // The angle is a product in f32, here as in the reference implementations.
                    let (sin, cos) = f64::from(position as f32 * inv_freq).sin_cos();
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
        inv_freq,
    };
    Case {
        name: format!("rope {layout:?} {n} x {n_head} x {head_dim}, {n_rot} turned"),
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

/// Rows scattered over a larger matrix and gathered again.
fn scatter_gather<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    let x = random.rows(n, dim);
    Case {
        name: format!("scatter_rows, gather_rows {n} x {dim}"),
        tolerance: EXACT,
        expected: x.iter().map(|x| f64_row(x)).collect(),
        run: Box::new(move |backend, items| {
            let x = upload(backend, &pick(&x, items));
            let rows: Vec<usize> = (0..items.len())
                .map(|i| 3 * (items.len() - i) - 1)
                .collect();
            let mut scattered = backend.buffer(3 * items.len() * dim);
            backend.scatter_rows(&x, dim, &rows, &mut scattered);
            let mut out = backend.buffer(items.len() * dim);
            backend.gather_rows(&scattered, dim, &rows, &mut out);
            download(backend, &out, items.len(), dim)
        }),
    }
}

/// The second and the first part of each row, swapped.
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

fn attention<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    max_past: usize,
) -> Case<B> {
    let shape = AttentionShape {
        n_head,
        n_head_kv,
        head_dim,
        scale: (head_dim as f32).sqrt().recip(),
    };
    let q = random.rows(n, n_head * head_dim);
    let dim_kv = n_head_kv * head_dim;
    let caches: Vec<[Vec<Vec<f32>>; 2]> = (0..n)
        .map(|i| {
            let len = if i == 0 {
                max_past
            } else {
                1 + random.below(max_past)
            };
            [random.rows(len, dim_kv), random.rows(len, dim_kv)]
        })
        .collect();
    let expected = q
        .iter()
        .zip(&caches)
        .map(|(q, [k, v])| {
            let mut out = Vec::new();
            for (h, q) in q.chunks(head_dim).enumerate() {
                let at = h / (n_head / n_head_kv) * head_dim;
                let head = |row: &[f32]| f64_row(&row[at..at + head_dim]);
                let score =
                    |k: &Vec<f32>| (dot(&f64_row(q), &head(k)) * f64::from(shape.scale)).exp();
                let weights: Vec<f64> = k.iter().map(score).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..head_dim {
                    let v = v.iter().zip(&weights).map(|(v, w)| head(v)[d] * w);
                    out.push(v.sum::<f64>() / sum);
                }
            }
            out
        })
        .collect();
    Case {
        name: format!("attention {n} x {n_head}/{n_head_kv} x {head_dim}, up to {max_past} keys"),
        tolerance: FUNCTION_TOLERANCE,
        expected,
        run: Box::new(move |backend, items| {
            // Pasts one after the other, with rows between them that nobody wrote.
            let mut rows = 2;
            let mut keys = Vec::new();
            for &item in items {
                keys.push(rows..rows + caches[item][0].len());
                rows += caches[item][0].len() + 1 + items.len() % 5;
            }
            let mut sides = [backend.buffer(rows * dim_kv), backend.buffer(rows * dim_kv)];
            for (side, cache) in sides.iter_mut().enumerate() {
                for (&item, keys) in items.iter().zip(&keys) {
                    backend.upload(&caches[item][side].concat(), cache, keys.start * dim_kv);
                }
            }
            let q = upload(backend, &pick(&q, items));
            let mut out = backend.buffer(items.len() * n_head * head_dim);
            backend.attention(&shape, &q, &sides[0], &sides[1], &keys, &mut out);
            download(backend, &out, items.len(), n_head * head_dim)
        }),
    }
}

/// Slots per sequence: steps walk around them, as snapshots do, or stay in the first.
const N_SLOT: usize = 3;

/// Steps of sequences of `len` tokens that advance together, one token each in turn. Every other
/// sequence keeps snapshots.
fn steps(n_sequence: usize, len: usize) -> Vec<Step> {
    let slot = |sequence: usize, token: usize| {
        sequence * N_SLOT
            + if sequence.is_multiple_of(2) {
                token % N_SLOT
            } else {
                0
            }
    };
    let step = |token: usize, sequence: usize| Step {
        row: token * n_sequence + sequence,
        read: token.checked_sub(1).map(|before| slot(sequence, before)),
        write: slot(sequence, token),
    };
    (0..len)
        .flat_map(|token| (0..n_sequence).map(move |sequence| step(token, sequence)))
        .collect()
}

/// Rows of the chosen sequences in the order of [`steps`].
fn interleave(sequences: &[Vec<Vec<f32>>], items: &[usize]) -> Vec<f32> {
    let len = sequences[0].len();
    (0..len)
        .flat_map(|token| items.iter().flat_map(move |&i| sequences[i][token].clone()))
        .collect()
}

/// Undoes [`interleave`]: all rows of each sequence, one after the other.
fn per_sequence(rows: Vec<Vec<f32>>, n_sequence: usize) -> Vec<Vec<f32>> {
    (0..n_sequence)
        .map(|s| {
            rows.iter()
                .skip(s)
                .step_by(n_sequence)
                .flatten()
                .copied()
                .collect()
        })
        .collect()
}

fn causal_conv<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    len: usize,
    n_channel: usize,
    kernel: usize,
) -> Case<B> {
    let (data, w) = weight(random, DType::F32, n_channel, kernel);
    let x: Vec<Vec<Vec<f32>>> = (0..n).map(|_| random.rows(len, n_channel)).collect();
    let formula = |x: &Vec<Vec<f32>>| {
        let mut out = Vec::new();
        for token in 0..len {
            for channel in 0..n_channel {
                let mut sum = 0.0;
                for back in 0..kernel.min(token + 1) {
                    let tap = w[channel * kernel + kernel - 1 - back];
                    sum += f64::from(tap) * f64::from(x[token - back][channel]);
                }
                out.push(sum / (1.0 + (-sum).exp()));
            }
        }
        out
    };
    Case {
        name: format!("causal_conv {n} x {len} x {n_channel}, kernel {kernel}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: x.iter().map(formula).collect(),
        run: Box::new(move |backend, items| {
            let w = load(backend, &data);
            let input = upload(backend, &interleave(&x, items));
            let n_row = items.len() * len;
            let mut state = backend.buffer(items.len() * N_SLOT * (kernel - 1) * n_channel);
            let mut out = backend.buffer(n_row * n_channel);
            backend.causal_conv(&input, &w, &steps(items.len(), len), &mut state, &mut out);
            per_sequence(download(backend, &out, n_row, n_channel), items.len())
        }),
    }
}

fn gated_delta_rule<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    len: usize,
    shape: DeltaShape,
) -> Case<B> {
    let DeltaShape {
        n_head_k,
        n_head_v,
        head_dim_k,
        head_dim_v,
    } = shape;
    let (dt_bias_data, dt_bias) = weight(random, DType::F32, 1, n_head_v);
    let (a_data, a) = weight(random, DType::F32, 1, n_head_v);
    // q and k of unit length, as the operation expects them.
    let mut sequences = |dim: usize, unit: bool| -> Vec<Vec<Vec<f32>>> {
        let scale = if unit {
            (3.0 / head_dim_k as f32).sqrt()
        } else {
            1.0
        };
        let row = |row: Vec<f32>| row.into_iter().map(|x| x * scale).collect();
        (0..n)
            .map(|_| random.rows(len, dim).into_iter().map(row).collect())
            .collect()
    };
    let input = [
        sequences(n_head_k * head_dim_k, true),
        sequences(n_head_k * head_dim_k, true),
        sequences(n_head_v * head_dim_v, false),
        sequences(n_head_v, false),
        sequences(n_head_v, false),
    ];
    let formula = |item: usize| {
        let [q, k, v, alpha, beta] = [0, 1, 2, 3, 4].map(|part| &input[part][item]);
        let mut out = vec![0.0; len * n_head_v * head_dim_v];
        for head in 0..n_head_v {
            let mut state = vec![vec![0.0f64; head_dim_v]; head_dim_k];
            let at_k = head % n_head_k * head_dim_k;
            let at_v = head * head_dim_v;
            for token in 0..len {
                let q = f64_row(&q[token][at_k..at_k + head_dim_k]);
                let k = f64_row(&k[token][at_k..at_k + head_dim_k]);
                let v = f64_row(&v[token][at_v..at_v + head_dim_v]);
                let alpha = f64::from(alpha[token][head]) + f64::from(dt_bias[head]);
                let decay = (alpha.exp().ln_1p() * f64::from(a[head])).exp();
                let strength = 1.0 / (1.0 + (-f64::from(beta[token][head])).exp());
                for (column, v) in v.iter().enumerate() {
                    state.iter_mut().for_each(|row| row[column] *= decay);
                    let column_of = |state: &[Vec<f64>]| -> Vec<f64> {
                        state.iter().map(|row| row[column]).collect()
                    };
                    let delta = strength * (v - dot(&column_of(&state), &k));
                    state
                        .iter_mut()
                        .zip(&k)
                        .for_each(|(row, k)| row[column] += k * delta);
                    out[token * n_head_v * head_dim_v + at_v + column] =
                        dot(&column_of(&state), &q) / (head_dim_k as f64).sqrt();
                }
            }
        }
        out
    };
    Case {
        name: format!("gated_delta_rule {n} x {len}, {shape:?}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: (0..n).map(formula).collect(),
        run: Box::new(move |backend, items| {
            let [q, k, v, alpha, beta] =
                [0, 1, 2, 3, 4].map(|part| upload(backend, &interleave(&input[part], items)));
            let (dt_bias, a) = (load(backend, &dt_bias_data), load(backend, &a_data));
            let n_row = items.len() * len;
            let slot_len = n_head_v * head_dim_k * head_dim_v;
            let mut state = backend.buffer(items.len() * N_SLOT * slot_len);
            let mut out = backend.buffer(n_row * n_head_v * head_dim_v);
            let input = DeltaInput {
                q: &q,
                k: &k,
                v: &v,
                alpha: &alpha,
                beta: &beta,
                dt_bias: &dt_bias,
                a: &a,
            };
            let steps = steps(items.len(), len);
            backend.gated_delta_rule(&shape, input, &steps, &mut state, &mut out);
            per_sequence(
                download(backend, &out, n_row, n_head_v * head_dim_v),
                items.len(),
            )
        }),
    }
}

/// A random weight, and its elements as its type can hold them.
fn weight(
    random: &mut Random,
    dtype: DType,
    n_rows: usize,
    n_cols: usize,
) -> (WeightData, Vec<f32>) {
    let quant_type = quant_type(dtype).expect("the types in the table have codecs");
    let row_bytes = dtype.row_bytes(n_cols as u64).expect("whole blocks") as usize;
    let mut bytes = vec![0; n_rows * row_bytes];
    for bytes in bytes.chunks_exact_mut(row_bytes) {
        quant_type.quantize_row(&random.row(n_cols), None, bytes);
    }
    let mut held = vec![0.0; n_rows * n_cols];
    quant_type.dequantize(&bytes, &mut held);
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

fn load<B: Backend>(backend: &B, data: &WeightData) -> B::Weight {
    backend
        .load(data.clone())
        .expect("the types in the table have kernels")
}

fn upload<B: Backend>(backend: &B, elements: &[f32]) -> B::Buffer {
    let mut buffer = backend.buffer(elements.len());
    backend.upload(elements, &mut buffer, 0);
    buffer
}

fn download<B: Backend>(backend: &B, buffer: &B::Buffer, n: usize, dim: usize) -> Vec<Vec<f32>> {
    let mut elements = vec![0.0; n * dim];
    backend.download(buffer, 0, &mut elements);
    elements.chunks(dim).map(<[f32]>::to_vec).collect()
}

fn pick(rows: &[Vec<f32>], items: &[usize]) -> Vec<f32> {
    items.iter().flat_map(|&i| rows[i].clone()).collect()
}

fn largest(rows: &[Vec<f64>]) -> f64 {
    rows.iter().flatten().fold(0.0, |a, b| a.max(b.abs()))
}

fn f64_row(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&x| f64::from(x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Elements between -1 and 1.
    fn row(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect()
    }

    fn rows(&mut self, n: usize, dim: usize) -> Vec<Vec<f32>> {
        (0..n).map(|_| self.row(dim)).collect()
    }
}
