//! Choice of tokens and their embedding.

use std::sync::Arc;

use kernels::backend::{Backend, Largest};
use kernels::cuda::Launching;
use schemas::gguf::DType;

use crate::cases::EXACT;
use crate::data::{Random, download, f64_row, load, pick, upload, weight};
use crate::emulated::Order;
use crate::{Case, backends, cuda};

/// Elements per embedding row.
const N_EMBD: usize = 5;

/// The result of a simple loop over a row.
fn expected(row: &[f32]) -> (usize, f32) {
    let mut best = (0, row[0]);
    for (i, &x) in row.iter().enumerate() {
        if x.is_nan() || x == f32::INFINITY {
            return (i, x);
        }
        if x > best.1 {
            best = (i, x);
        }
    }
    best
}

/// Chooses into places after one that must stay unchanged, and embeds the chosen tokens.
fn run<B: Backend>(
    backend: &B,
    table: &B::Weight,
    rows: &[f32],
    dim: usize,
    names: Option<&[u32]>,
) -> (Vec<Largest>, Vec<Vec<f32>>) {
    let n = rows.len() / dim;
    let x = upload(backend, rows);
    let mut chosen = backend.chosen(n + 2);
    backend.choose(&x, dim, names, &mut chosen, 1..n + 1);
    let mut out = backend.buffer(n * N_EMBD);
    let backwards: Vec<usize> = (1..n + 1).rev().collect();
    backend.embed_chosen(table, &chosen, &backwards, &mut out);
    let mut found = vec![
        Largest {
            index: 0,
            value: 0.0
        };
        n
    ];
    backend.download_chosen(&chosen, 1, &mut found);
    let mut rows = download(backend, &out, n, N_EMBD);
    rows.reverse();
    (found, rows)
}

pub(crate) fn choose<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    dim: usize,
    has_names: bool,
) -> Case<B> {
    let (data, table) = weight(random, DType::F32, 2 * dim, N_EMBD);
    let names: Option<Arc<[u32]>> =
        has_names.then(|| (0..dim).map(|_| random.below(2 * dim) as u32).collect());
    // Few distinct values, so that many are equal.
    let coarse = |row: Vec<f32>| row.into_iter().map(|x| (x * 9.0).round()).collect();
    let x: Vec<Vec<f32>> = random.rows(n, dim).into_iter().map(coarse).collect();
    let of_row = |row: &Vec<f32>| {
        let (index, value) = expected(row);
        let token = names.as_ref().map_or(index, |names| names[index] as usize);
        let mut all = vec![token as f64, f64::from(value)];
        all.extend(f64_row(&table[token * N_EMBD..][..N_EMBD]));
        all
    };
    Case {
        name: format!("choose {n} x {dim}, names {has_names}"),
        tolerance: EXACT,
        expected: x.iter().map(of_row).collect(),
        run: Box::new(move |backend, items| {
            let table = load(backend, &data);
            let (found, rows) = run(backend, &table, &pick(&x, items), dim, names.as_deref());
            let pairs = found.iter().zip(rows);
            pairs
                .map(|(found, row)| [vec![found.index as f32, found.value], row].concat())
                .collect()
        }),
    }
}

/// NaN and infinity are never missed, and zeros of either sign are equal.
#[test]
fn odd_rows_choose_the_same_tokens() {
    const DIM: usize = 1037;
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let row = |rest: f32, odd: &[(usize, f32)]| {
        let mut row = vec![rest; DIM];
        odd.iter().for_each(|&(i, x)| row[i] = x);
        row
    };
    let rows = [
        row(-inf, &[]),
        row(-inf, &[(1036, f32::MIN)]),
        row(-1.0, &[(700, -0.0), (900, 0.0)]),
        row(-1.0, &[(900, -0.0), (700, 0.0)]),
        row(1.0, &[(512, nan), (600, inf)]),
        row(1.0, &[(600, nan), (512, inf)]),
        row(1.0, &[(31, -nan), (32, nan)]),
        row(inf, &[(5, -inf)]),
        row(f32::MIN_POSITIVE / 2.0, &[(7, f32::MIN_POSITIVE)]),
    ];
    let bits = |found: &Largest| (found.index as usize, found.value.to_bits());
    let wanted: Vec<_> = rows
        .iter()
        .map(|row| expected(row))
        .map(|(i, x)| (i, x.to_bits()))
        .collect();
    let (data, _) = weight(&mut Random(3), DType::F32, DIM, N_EMBD);
    for backend in backends() {
        let table = load(&backend, &data);
        let (found, _) = run(&backend, &table, &rows.concat(), DIM, None);
        assert_eq!(found.iter().map(bits).collect::<Vec<_>>(), wanted);
    }
    for order in [Order::Rising, Order::Falling] {
        let Some(backend) = cuda(order, Launching::Graphs) else {
            return;
        };
        let table = load(&backend, &data);
        let (found, _) = run(&backend, &table, &rows.concat(), DIM, None);
        assert_eq!(found.iter().map(bits).collect::<Vec<_>>(), wanted);
    }
}
