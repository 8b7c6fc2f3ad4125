//! Mixture-of-experts layers.

use kernels::backend::{Backend, ExpertInput, Gating, Routing, WeightData};
use schemas::gguf::DType;

use crate::Case;
use crate::cases::{FUNCTION_TOLERANCE, SUM_TOLERANCE, activations};
use crate::data::{Random, download, f64_row, largest, load, pick, upload, weight};

/// The probabilities of all experts, by the formula.
fn probabilities(logits: &[f32], routing: &Routing) -> Vec<f64> {
    let x = f64_row(logits);
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    let probability = |x: &f64| match routing.gating {
        Gating::Softmax => x.exp() / sum,
        Gating::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Gating::SqrtSoftplus => x.exp().ln_1p().sqrt(),
    };
    x.iter().map(probability).collect()
}

/// The chosen experts with their weights.
fn weigh(chosen: &[usize], probabilities: &[f64], routing: &Routing) -> Vec<(usize, f64)> {
    let sum: f64 = chosen.iter().map(|&expert| probabilities[expert]).sum();
    let divisor = if routing.normalised { sum } else { 1.0 };
    let weight = |expert| probabilities[expert] / divisor * f64::from(routing.scale);
    let chosen = chosen.iter().copied();
    chosen.map(|expert| (expert, weight(expert))).collect()
}

/// The experts of each row in order of choice, and their weights, by the formula.
fn choice(logits: &[f32], bias: Option<&[f32]>, routing: &Routing) -> Vec<(usize, f64)> {
    let probabilities = probabilities(logits, routing);
    let mut scores = probabilities.clone();
    if let Some(bias) = bias {
        scores
            .iter_mut()
            .zip(bias)
            .for_each(|(x, b)| *x += f64::from(*b));
    }
    let falling = |values: &[f64]| -> Vec<usize> {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        order
    };
    let n_group = routing.n_group.max(1);
    let group_len = scores.len() / n_group;
    let good = |group: &[f64]| falling(group).iter().take(2).map(|&i| group[i]).sum();
    let groups: Vec<f64> = scores.chunks(group_len).map(good).collect();
    let kept = &falling(&groups)[..routing.n_group_used.min(n_group)];
    let order = falling(&scores).into_iter();
    let chosen: Vec<usize> = order
        .filter(|expert| kept.contains(&(expert / group_len)))
        .take(routing.n_used)
        .collect();
    weigh(&chosen, &probabilities, routing)
}

/// Routing, both kinds of expert product, and the sum: `(down_e x)` for every chosen expert, then `up_e` of
/// each, combined.
pub(crate) fn experts<B: Backend + 'static>(
    random: &mut Random,
    dtype: DType,
    routing: Routing,
    n: usize,
    with_bias: bool,
) -> Case<B> {
    let (n_embd, n_ff) = (64, 96);
    let Routing {
        n_expert, n_used, ..
    } = routing;
    let mut stack = |n_out, n_in| -> Vec<(WeightData, Vec<f32>)> {
        (0..n_expert)
            .map(|_| weight(random, dtype, n_out, n_in))
            .collect()
    };
    let (up, down) = (stack(n_ff, n_embd), stack(n_embd, n_ff));
    let (bias_data, bias) = weight(random, DType::F32, 1, n_expert);
    let (up_bias_data, up_bias) = weight(random, DType::F32, n_expert, n_ff);
    let (factor_data, factors) = weight(random, DType::F32, 1, n_expert);
    let x = random.rows(n, n_embd);
    let logits: Vec<Vec<f32>> = random
        .rows(n, n_expert)
        .into_iter()
        .map(|row| row.into_iter().map(|x| 3.0 * x).collect())
        .collect();
    let product = |w: &[f32], x: &[f64]| -> Vec<f64> {
        let dot = |w: &[f32]| w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        w.chunks(x.len()).map(dot).collect()
    };
    let bias = with_bias.then_some(bias);
    let expected: Vec<Vec<f64>> = x
        .iter()
        .zip(&logits)
        .map(|(x, logits)| {
            let mut out = vec![0.0; n_embd];
            for (expert, counts) in choice(logits, bias.as_deref(), &routing) {
                let mut inner = product(&up[expert].1, &activations(dtype, x));
                if with_bias {
                    let bias = &up_bias[expert * n_ff..][..n_ff];
                    inner
                        .iter_mut()
                        .zip(bias)
                        .for_each(|(x, &b)| *x += f64::from(b));
                }
                let inner: Vec<f32> = inner.into_iter().map(|x| x as f32).collect();
                let outer = product(&down[expert].1, &activations(dtype, &inner));
                // Where experts have biases, their outputs also have factors.
                let factor = if with_bias {
                    f64::from(factors[expert])
                } else {
                    1.0
                };
                out.iter_mut()
                    .zip(outer)
                    .for_each(|(out, y)| *out += counts * factor * y);
            }
            out
        })
        .collect();
    // Sums of sums of some hundred terms that cancel.
    let terms = (n_embd * n_ff) as f64 * f64::from(routing.scale);
    // Other rounding errors of an inner element can round it to the next quant.
    let quant_step = match dtype {
        DType::F32 | DType::BF16 => 0.0,
        _ => 1.0 / 127.0,
    };
    Case {
        name: format!("experts {dtype} {n} rows, {routing:?}, bias {with_bias}"),
        tolerance: FUNCTION_TOLERANCE
            + SUM_TOLERANCE * terms.sqrt() / largest(&expected)
            + quant_step,
        expected,
        run: Box::new(move |backend, items| {
            let all = |stack: &[(WeightData, Vec<f32>)]| -> Vec<B::Weight> {
                stack.iter().map(|(data, _)| load(backend, data)).collect()
            };
            let bias = with_bias.then(|| load(backend, &bias_data));
            let n = items.len();
            let logits = upload(backend, &pick(&logits, items));
            let x = upload(backend, &pick(&x, items));
            let mut routes = backend.routes(n, n_used);
            backend.route(&logits, bias.as_ref(), &routing, n, &mut routes);
            let mut inner = backend.buffer(n * n_used * n_ff);
            let per_row = ExpertInput::PerRow;
            backend.expert_matmul(&all(&up), &routes, &x, per_row, n, &mut inner);
            if with_bias {
                let bias = load(backend, &up_bias_data);
                backend.add_expert_bias(&mut inner, &bias, &routes, n);
            }
            let mut outer = backend.buffer(n * n_used * n_embd);
            let per_expert = ExpertInput::PerExpert;
            backend.expert_matmul(&all(&down), &routes, &inner, per_expert, n, &mut outer);
            if with_bias {
                let factors = load(backend, &factor_data);
                backend.scale_experts(&mut outer, &factors, &routes, n_embd, n);
            }
            let mut out = backend.buffer(n * n_embd);
            backend.combine_experts(&routes, &outer, n_embd, n, &mut out);
            download(backend, &out, n, n_embd)
        }),
    }
}

/// Given experts, and the sum of their outputs.
pub(crate) fn route_to<B: Backend + 'static>(
    random: &mut Random,
    routing: Routing,
    n: usize,
) -> Case<B> {
    const DIM: usize = 19;
    let Routing {
        n_expert, n_used, ..
    } = routing;
    let logits = random.rows(n, n_expert);
    let x = random.rows(n, n_used * DIM);
    let experts: Vec<Vec<usize>> = (0..n)
        .map(|_| {
            let first = random.below(n_expert);
            (0..n_used).map(|i| (first + i) % n_expert).collect()
        })
        .collect();
    let formula = |row: usize| {
        let probabilities = probabilities(&logits[row], &routing);
        let mut out = vec![0.0; DIM];
        let weights = weigh(&experts[row], &probabilities, &routing);
        for (x, (_, weight)) in x[row].chunks(DIM).zip(weights) {
            let terms = x.iter().map(|&x| f64::from(x) * weight);
            out.iter_mut().zip(terms).for_each(|(out, x)| *out += x);
        }
        out
    };
    Case {
        name: format!("route_to {n} rows, {routing:?}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: (0..n).map(formula).collect(),
        run: Box::new(move |backend, items| {
            let n = items.len();
            let logits = upload(backend, &pick(&logits, items));
            let x = upload(backend, &pick(&x, items));
            let given = items.iter().flat_map(|&i| &experts[i]);
            let given: Vec<u32> = given.map(|&expert| expert as u32).collect();
            let mut routes = backend.routes(n, n_used);
            backend.route_to(&logits, &given, &routing, n, &mut routes);
            assert_eq!(backend.download_experts(&routes, n), given);
            let mut out = backend.buffer(n * DIM);
            backend.combine_experts(&routes, &x, DIM, n, &mut out);
            download(backend, &out, n, DIM)
        }),
    }
}

/// Every row with every expert: the combined products, and each head's own row.
pub(crate) fn heads<B: Backend + 'static>(random: &mut Random, n: usize, n_head: usize) -> Case<B> {
    let (n_in, n_out) = (48, 32);
    let heads: Vec<(WeightData, Vec<f32>)> = (0..n_head)
        .map(|_| weight(random, DType::F32, n_out, n_in))
        .collect();
    let x = random.rows(n, n_head * n_in);
    let formula = |x: &Vec<f32>| {
        let parts = x.chunks(n_in).zip(&heads);
        let rows = parts.flat_map(|(x, (_, w))| w.chunks(n_in).map(move |w| (x, w)));
        rows.map(|(x, w)| {
            x.iter()
                .zip(w)
                .map(|(&x, &w)| f64::from(x) * f64::from(w))
                .sum()
        })
        .collect()
    };
    let expected: Vec<Vec<f64>> = x.iter().map(formula).collect();
    Case {
        name: format!("heads {n} x {n_head}"),
        tolerance: SUM_TOLERANCE * (n_in as f64).sqrt() / largest(&expected),
        expected,
        run: Box::new(move |backend, items| {
            let heads: Vec<_> = heads.iter().map(|(data, _)| load(backend, data)).collect();
            let n = items.len();
            let x = upload(backend, &pick(&x, items));
            let mut routes = backend.routes(n, n_head);
            backend.choose_all(n, &mut routes);
            let experts = backend.download_experts(&routes, n);
            let expected = (0..n).flat_map(|_| 0..n_head as u32);
            assert!(experts.into_iter().eq(expected));
            let mut out = backend.buffer(n * n_head * n_out);
            backend.expert_matmul(&heads, &routes, &x, ExpertInput::PerExpert, n, &mut out);
            download(backend, &out, n, n_head * n_out)
        }),
    }
}

pub(crate) fn sigmoid_mul_rows<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    dim: usize,
) -> Case<B> {
    let (x, gate) = (random.rows(n, dim), random.rows(n, 1));
    let formula = |(x, gate): (&Vec<f32>, &Vec<f32>)| {
        let factor = 1.0 / (1.0 + (-f64::from(gate[0])).exp());
        x.iter().map(|&x| f64::from(x) * factor).collect()
    };
    Case {
        name: format!("sigmoid_mul_rows {n} x {dim}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: x.iter().zip(&gate).map(formula).collect(),
        run: Box::new(move |backend, items| {
            let mut out = upload(backend, &pick(&x, items));
            let gate = upload(backend, &pick(&gate, items));
            backend.sigmoid_mul_rows(&mut out, &gate, dim, items.len());
            download(backend, &out, items.len(), dim)
        }),
    }
}
