//! Hyper-connections.

use kernels::backend::{Backend, StreamShape};
use schemas::gguf::DType;

use crate::Case;
use crate::cases::FUNCTION_TOLERANCE;
use crate::data::{Random, download, f64_row, load, pick, upload, weight};

/// The weights of a row, the sum of its streams, and the streams after a connection if there is one.
pub(crate) fn hyper_connection<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    shape: StreamShape,
) -> Case<B> {
    let StreamShape {
        n_stream,
        dim,
        n_weight,
        ..
    } = shape;
    let (scale_data, scale) = weight(random, DType::F32, 1, 3);
    let (base_data, base) = weight(random, DType::F32, 1, n_weight);
    let mixes = random.rows(n, n_weight);
    let x = random.rows(n, n_stream * dim);
    let output = random.rows(n, dim);
    let is_connection = shape.is_connection();
    let formula = |row: usize| {
        let weights = weights(&shape, &mixes[row], &scale, &base);
        let (x, output) = (f64_row(&x[row]), f64_row(&output[row]));
        // The sum over streams of one element times a factor.
        let sum = |column: usize, factor: &dyn Fn(usize) -> f64| -> f64 {
            let terms = (0..n_stream).map(|stream| x[stream * dim + column] * factor(stream));
            terms.sum()
        };
        let gathered = (0..dim).map(|column| sum(column, &|from| weights[from]));
        let mut all: Vec<f64> = weights.iter().copied().chain(gathered).collect();
        if is_connection {
            let (factors, matrix) = weights[n_stream..].split_at(n_stream);
            for (to, factor) in factors.iter().enumerate() {
                let mixed = |column| sum(column, &|from| matrix[from * n_stream + to]);
                all.extend((0..dim).map(|column| output[column] * factor + mixed(column)));
            }
        }
        all
    };
    Case {
        name: format!("hyper_connection {n} rows, {shape:?}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: (0..n).map(formula).collect(),
        run: Box::new(move |backend, items| {
            let n = items.len();
            let (scale, base) = (load(backend, &scale_data), load(backend, &base_data));
            let mixes = upload(backend, &pick(&mixes, items));
            let mut streams = upload(backend, &pick(&x, items));
            let mut weights = backend.buffer(n * n_weight);
            let mut gathered = backend.buffer(n * dim);
            backend.stream_weights(&shape, &mixes, &scale, &base, n, &mut weights);
            backend.gather_streams(&shape, &streams, &weights, n, &mut gathered);
            let mut parts = vec![
                download(backend, &weights, n, n_weight),
                download(backend, &gathered, n, dim),
            ];
            if is_connection {
                let output = upload(backend, &pick(&output, items));
                backend.scatter_streams(&shape, &mut streams, &output, &weights, n);
                parts.push(download(backend, &streams, n, n_stream * dim));
            }
            let row = |i: usize| parts.iter().flat_map(|part| part[i].clone()).collect();
            (0..n).map(row).collect()
        }),
    }
}

/// The factors of one row, by the formula.
fn weights(shape: &StreamShape, mixes: &[f32], scale: &[f32], base: &[f32]) -> Vec<f64> {
    let n = shape.n_stream;
    let eps = f64::from(shape.eps);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let value =
        |i: usize| f64::from(mixes[i]) * f64::from(scale[(i / n).min(2)]) + f64::from(base[i]);
    let inputs = (0..n).map(|i| sigmoid(value(i)) + eps);
    let outputs = (n..shape.n_weight.min(2 * n)).map(|i| 2.0 * sigmoid(value(i)));
    let mut all: Vec<f64> = inputs.chain(outputs).collect();
    let mut matrix: Vec<f64> = (2 * n..shape.n_weight).map(|i| value(i).exp()).collect();
    let divide = |matrix: &mut [f64], first: usize, step: usize, eps: f64| {
        let places = || (0..n).map(|i| first + i * step);
        let sum: f64 = places().map(|i| matrix[i]).sum::<f64>() + eps;
        places().for_each(|i| matrix[i] /= sum);
    };
    if shape.is_connection() {
        (0..n).for_each(|row| divide(&mut matrix, row * n, 1, 0.0));
        matrix.iter_mut().for_each(|x| *x += eps);
        (0..n).for_each(|column| divide(&mut matrix, column, n, eps));
        for _ in 1..shape.n_iteration {
            (0..n).for_each(|row| divide(&mut matrix, row * n, 1, eps));
            (0..n).for_each(|column| divide(&mut matrix, column, n, eps));
        }
    }
    all.extend(matrix);
    all
}
