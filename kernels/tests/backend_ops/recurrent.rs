//! Recurrent operations. Their items are whole sequences.

use kernels::backend::{
    Backend, DeltaInput, DeltaShape, HeadOrder, StateSpaceInput, StateSpaceShape, Step,
};
use schemas::gguf::DType;

use crate::Case;
use crate::cases::FUNCTION_TOLERANCE;
use crate::data::{Random, dot, download, f64_row, load, upload, weight};

/// Slots per sequence. Steps cycle through them, as with snapshots, or stay in the first.
const N_SLOT: usize = 3;

/// Steps of sequences of `len` tokens that advance one token at a time, all sequences alternately. Every
/// other sequence keeps snapshots.
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

/// Returns the rows of the chosen sequences in the order of [`steps`].
fn interleave(sequences: &[Vec<Vec<f32>>], items: &[usize]) -> Vec<f32> {
    let len = sequences[0].len();
    (0..len)
        .flat_map(|token| items.iter().flat_map(move |&i| sequences[i][token].clone()))
        .collect()
}

/// Reverses [`interleave`]: all rows of each sequence, one after another.
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

pub(crate) fn causal_conv<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    len: usize,
    [n_channel, kernel]: [usize; 2],
    with_bias: bool,
) -> Case<B> {
    let (data, w) = weight(random, DType::F32, n_channel, kernel);
    let (bias_data, bias) = weight(random, DType::F32, 1, n_channel);
    let bias_of = |channel: usize| match with_bias {
        true => f64::from(bias[channel]),
        false => 0.0,
    };
    let x: Vec<Vec<Vec<f32>>> = (0..n).map(|_| random.rows(len, n_channel)).collect();
    let formula = |x: &Vec<Vec<f32>>| {
        let mut out = Vec::new();
        for token in 0..len {
            for channel in 0..n_channel {
                let mut sum = bias_of(channel);
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
        name: format!("causal_conv {n} x {len} x {n_channel}, kernel {kernel}, bias {with_bias}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: x.iter().map(formula).collect(),
        run: Box::new(move |backend, items| {
            let w = load(backend, &data);
            let input = upload(backend, &interleave(&x, items));
            let n_row = items.len() * len;
            let mut state = backend.buffer(items.len() * N_SLOT * (kernel - 1) * n_channel);
            let mut out = backend.buffer(n_row * n_channel);
            let bias = with_bias.then(|| load(backend, &bias_data));
            let steps = steps(items.len(), len);
            backend.causal_conv(&input, &w, bias.as_ref(), &steps, &mut state, &mut out);
            per_sequence(download(backend, &out, n_row, n_channel), items.len())
        }),
    }
}

pub(crate) fn gated_delta_rule<B: Backend + 'static>(
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
        ..
    } = shape;
    let (dt_bias_data, dt_bias) = weight(random, DType::F32, 1, n_head_v);
    let (a_data, a) = weight(random, DType::F32, 1, n_head_v);
    // q and k of unit length, as the operation requires.
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
            let key_head = match shape.order {
                HeadOrder::Tiled => head % n_head_k,
                HeadOrder::Grouped => head * n_head_k / n_head_v,
            };
            let at_k = key_head * head_dim_k;
            let at_v = head * head_dim_v;
            for token in 0..len {
                let q = f64_row(&q[token][at_k..at_k + head_dim_k]);
                let k = f64_row(&k[token][at_k..at_k + head_dim_k]);
                let v = f64_row(&v[token][at_v..at_v + head_dim_v]);
                let alpha = f64::from(alpha[token][head]) + f64::from(dt_bias[head]);
                let decay = (alpha.exp().ln_1p() * f64::from(a[head])).exp();
                let strength = 1.0 / (1.0 + (-f64::from(beta[token][head])).exp());
                for (column, v) in v.iter().enumerate() {
                    for row in &mut state {
                        row[column] *= decay;
                    }
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

pub(crate) fn state_space<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    len: usize,
    shape: StateSpaceShape,
) -> Case<B> {
    let StateSpaceShape {
        n_head,
        head_dim,
        n_group,
        state_dim,
    } = shape;
    let inner = n_head * head_dim;
    let (dt_bias_data, dt_bias) = weight(random, DType::F32, 1, n_head);
    // As in files: one row for each head.
    let (a_data, a) = weight(random, DType::F32, n_head, 1);
    let (d_data, d) = weight(random, DType::F32, n_head, 1);
    let mixed: Vec<_> = (0..n)
        .map(|_| random.rows(len, shape.n_channel()))
        .collect();
    let dt: Vec<_> = (0..n).map(|_| random.rows(len, n_head)).collect();
    let formula = |item: usize| {
        let mut out = vec![0.0; len * inner];
        for head in 0..n_head {
            let mut state = vec![vec![0.0f64; state_dim]; head_dim];
            let at_b = inner + head * n_group / n_head * state_dim;
            let at_c = at_b + n_group * state_dim;
            for token in 0..len {
                let mixed = f64_row(&mixed[item][token]);
                let (b, c) = (&mixed[at_b..][..state_dim], &mixed[at_c..][..state_dim]);
                let dt = f64::from(dt[item][token][head]) + f64::from(dt_bias[head]);
                let delta = dt.exp().ln_1p();
                let decay = (delta * f64::from(a[head])).exp();
                for (column, row) in state.iter_mut().enumerate() {
                    let at = head * head_dim + column;
                    let x = mixed[at];
                    for (state, b) in row.iter_mut().zip(b) {
                        *state = decay * *state + delta * x * b;
                    }
                    out[token * inner + at] = dot(row, c) + f64::from(d[head]) * x;
                }
            }
        }
        out
    };
    Case {
        name: format!("state_space {n} x {len}, {shape:?}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: (0..n).map(formula).collect(),
        run: Box::new(move |backend, items| {
            let [mixed, dt] = [&mixed, &dt].map(|rows| upload(backend, &interleave(rows, items)));
            let [dt_bias, a, d] = [&dt_bias_data, &a_data, &d_data].map(|data| load(backend, data));
            let n_row = items.len() * len;
            let slot_len = n_head * shape.state_len();
            let mut state = backend.buffer(items.len() * N_SLOT * slot_len);
            let mut out = backend.buffer(n_row * inner);
            let input = StateSpaceInput {
                mixed: &mixed,
                dt: &dt,
                dt_bias: &dt_bias,
                a: &a,
                d: &d,
            };
            let steps = steps(items.len(), len);
            backend.state_space(&shape, input, &steps, &mut state, &mut out);
            per_sequence(download(backend, &out, n_row, inner), items.len())
        }),
    }
}
