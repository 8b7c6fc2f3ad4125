//! Element-wise operations.

use kernels::backend::Backend;
use schemas::gguf::DType;

use crate::cases::{FUNCTION_TOLERANCE, SUM_TOLERANCE};
use crate::data::{Random, download, load, pick, upload, weight};
use crate::{Case, Run};

pub(crate) fn elementwise<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    dim: usize,
) -> Vec<Case<B>> {
    type Formula = fn(f64, f64) -> f64;
    type Op<B> = fn(
        &B,
        &mut <B as kernels::backend::Storage>::Buffer,
        &<B as kernels::backend::Storage>::Buffer,
        usize,
    );
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
        case("gelu_mul", B::gelu_mul, |x, y| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh()) * y
        }),
        case("clamped_silu_mul", B::clamped_silu_mul, |x, y| {
            let x = x.min(7.0);
            x / (1.0 + (-1.702 * x).exp()) * (y.clamp(-7.0, 7.0) + 1.0)
        }),
        case(
            "relu_squared",
            |b, x, _, len| b.relu_squared(x, len),
            |x, _| x.max(0.0).powi(2),
        ),
        case(
            "scale",
            |b, x, _, len| b.scale(x, 1.75, len),
            |x, _| 1.75 * x,
        ),
        case(
            "softcap",
            |b, x, _, len| b.softcap(x, 0.75, len),
            |x, _| 0.75 * (x / 0.75).tanh(),
        ),
        case(
            "limited_silu_mul",
            |b, x, y, len| b.limited_silu_mul(x, y, 0.5, len),
            |x, y| {
                let x = x.min(0.5);
                x / (1.0 + (-x).exp()) * y.clamp(-0.5, 0.5)
            },
        ),
        case("sigmoid_mul", B::sigmoid_mul, |x, y| x / (1.0 + (-y).exp())),
    ]
}

pub(crate) fn add_bias<B: Backend + 'static>(random: &mut Random, n: usize, dim: usize) -> Case<B> {
    let (data, bias) = weight(random, DType::F32, 1, dim);
    let x = random.rows(n, dim);
    let add = |x: &Vec<f32>| {
        let sums = x
            .iter()
            .zip(&bias)
            .map(|(&x, &b)| f64::from(x) + f64::from(b));
        sums.collect()
    };
    Case {
        name: format!("add_bias {n} x {dim}"),
        tolerance: SUM_TOLERANCE,
        expected: x.iter().map(add).collect(),
        run: Box::new(move |backend, items| {
            let bias = load(backend, &data);
            let mut x = upload(backend, &pick(&x, items));
            backend.add_bias(&mut x, &bias, items.len());
            download(backend, &x, items.len(), dim)
        }),
    }
}
